"""clear-undefinedness: which gradients are known to be absent is forgotten."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from graphopt import ir
from graphopt.context import Context
from graphopt.ops import dialects
from graphopt.passes.base import Pass


@dataclass(frozen=True)
class ClearUndefinedness(Pass):
    """Forget which values of the model, its bodies and its functions are known to be zero gradients.

    The facts are metadata with the key ``graphopt.undefined``. They held for the runs that were
    profiled, and need not for others.
    """

    name: ClassVar[str] = "clear-undefinedness"

    def run(self, model: ir.Model, cx: Context) -> None:
        """Forget the facts of all values."""
        for graph in ir.graphs_of(model):
            for value in ir.values_of(graph):
                cx.edit.forget(value, lambda key: key == dialects.UNDEFINED)
