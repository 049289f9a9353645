"""peephole: the rewrite rules, to a fixpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from graphopt import ir
from graphopt.context import Context
from graphopt.passes.base import Pass
from graphopt.rewrite.driver import apply_rules
from graphopt.rules import admitted_rules


@dataclass(frozen=True)
class Peephole(Pass):
    """Apply local rewrite rules until none applies.

    Attributes:
        families: only rules of these families; all by default.
    """

    name: ClassVar[str] = "peephole"
    families: tuple[str, ...] = ()

    def run(self, model: ir.Model, cx: Context) -> None:
        """Apply every rule that the options admit, in bodies and functions too."""
        apply_rules(admitted_rules(cx.options, self.families), model, cx)
