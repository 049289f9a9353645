"""specialize-autograd-zero: remove the computation of gradients that are known to be zero."""

from __future__ import annotations

from typing import ClassVar

from graphopt import ir
from graphopt.context import Context
from graphopt.passes.base import Pass
from graphopt.transforms.autodiff._zero_gradients import walk_gradients
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class SpecializeAutogradZero(Pass):
    """Remove gradient regions with only zero inputs, and summands that are zero; keep other regions.

    Zeros are results of ``graphopt.ad::Zero`` and values annotated ``graphopt.undefined``.
    """

    name: ClassVar[str] = "specialize-autograd-zero"

    def run(self, model: ir.Model, cx: Context) -> None:
        """Propagate zeros, graph by graph."""
        walk_gradients(model, cx, self.name, lower=False)
