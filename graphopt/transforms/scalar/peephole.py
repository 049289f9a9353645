"""peephole: rewrite rules, to a fixpoint."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from graphopt import ir
from graphopt.context import Context
from graphopt.numerics import Numerics
from graphopt.passes.base import Pass
from graphopt.rewrite.worklist import apply_rules
from graphopt.rules import admitted_rules
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class Peephole(Pass):
    """Apply local rewrite rules to a fixpoint.

    Attributes:
        families: the families of rules to apply; all by default.
        numerics: the least strict class of rules, if the options allow it.
    """

    name: ClassVar[str] = "peephole"
    proven_exact: ClassVar[bool] = True
    revisits_changes: ClassVar[bool] = True
    families: tuple[str, ...] = ()
    numerics: Numerics = Numerics.APPROXIMATES

    def run(self, model: ir.Model, cx: Context) -> None:
        """Apply every rule that the options admit, also in bodies and functions."""
        options = replace(cx.options, numerics=min(cx.options.numerics, self.numerics))
        apply_rules(admitted_rules(options, self.families), model, cx)
