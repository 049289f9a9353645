"""remove-expands: removal of Expands that broadcasting makes redundant."""

from __future__ import annotations

from typing import ClassVar

from graphopt import ir
from graphopt.context import Context
from graphopt.passes.base import Pass
from graphopt.rewrite.worklist import apply_rules
from graphopt.rules import admitted_rules
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class RemoveExpands(Pass):
    """Remove Expands whose readers broadcast their operands to the same shape."""

    name: ClassVar[str] = "remove-expands"

    def run(self, model: ir.Model, cx: Context) -> None:
        """Apply the rules of the family ``expand``."""
        apply_rules(admitted_rules(cx.options, ("expand",)), model, cx)
