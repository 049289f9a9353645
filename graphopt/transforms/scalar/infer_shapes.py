"""infer-shapes: shape inference."""

from __future__ import annotations

from typing import ClassVar

from graphopt import ir
from graphopt.context import Context
from graphopt.passes.base import Pass
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class InferShapes(Pass):
    """Shape inference: compute dtypes, shapes and small integer contents of all values.

    The facts are stored in a table outside of the model, which other passes fill on demand. The model is not
    changed.
    """

    name: ClassVar[str] = "infer-shapes"

    def run(self, model: ir.Model, cx: Context) -> None:
        """Infer the facts of all values."""
        cx.facts.infer_all()
