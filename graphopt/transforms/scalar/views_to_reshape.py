"""views-to-reshape: one form for views of the same elements."""

from __future__ import annotations

from typing import ClassVar

from graphopt import ir
from graphopt.context import Context
from graphopt.passes.base import Pass
from graphopt.rewrite.worklist import apply_rules
from graphopt.rules import admitted_rules
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class ViewsToReshape(Pass):
    """Replace Squeeze, Unsqueeze, Flatten and Reshape by one Reshape to a constant shape.

    Chains of views become one, and views without effect are removed. In the shape, known sizes are numbers,
    dims that keep their position are 0, and at most one other dim is -1; views with more unknown dims are
    unchanged.
    """

    name: ClassVar[str] = "views-to-reshape"

    def run(self, model: ir.Model, cx: Context) -> None:
        """Rewrite the views of each graph, inner ones first."""
        apply_rules(admitted_rules(cx.options, pass_=self.name), model, cx)
