"""fuse-builtin: patterns become the fused operators that the runtime has kernels for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from graphopt import ir
from graphopt.context import Context
from graphopt.passes.base import FUSED_OPERATORS, Pass
from graphopt.rewrite.worklist import apply_rules
from graphopt.rules import admitted_rules


@dataclass(frozen=True)
class FuseBuiltin(Pass):
    """Put fused operators, such as MultiHeadAttention, in the place of what they compute.

    Operators are chosen for the target: those that it has kernels for, and that are faster there
    than what they replace. Without ``--portable`` that includes operators of ``com.microsoft``, and
    forms that onnxruntime fuses by itself into what the opset has no operator for.

    Attributes:
        families: only rules of these families; all by default.
    """

    name: ClassVar[str] = "fuse-builtin"
    provides: ClassVar[frozenset[str]] = frozenset({FUSED_OPERATORS})
    for_speed: ClassVar[bool] = True
    families: tuple[str, ...] = ()

    def run(self, model: ir.Model, cx: Context) -> None:
        """Apply the rules of each phase to a fixpoint, in bodies and functions too."""
        rules = admitted_rules(cx.options, self.families, pass_=self.name)
        for phase in (1, 2):
            apply_rules([rule for rule in rules if rule.phase == phase], model, cx)
