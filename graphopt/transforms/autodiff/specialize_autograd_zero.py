"""specialize-autograd-zero: no work for gradients that are known to be zero."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from graphopt import ir
from graphopt.context import Context
from graphopt.passes.base import Pass
from graphopt.transforms.autodiff._gradients import walk_gradients


@dataclass(frozen=True)
class SpecializeAutogradZero(Pass):
    """Drop gradient regions that only zeros enter, and sums with zeros; leave other regions whole.

    Zeros are those of ``graphopt.ad::Zero``, and values noted ``graphopt.undefined``.
    """

    name: ClassVar[str] = "specialize-autograd-zero"

    def run(self, model: ir.Model, cx: Context) -> None:
        """Let zeros travel, graph by graph."""
        walk_gradients(model, cx, self.name, lower=False)
