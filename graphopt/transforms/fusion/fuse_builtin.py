"""fuse-builtin: replace patterns by fused operators of the runtime."""

from __future__ import annotations

from typing import ClassVar

from graphopt import ir
from graphopt.context import Context
from graphopt.passes.base import FUSED_OPERATORS, Pass
from graphopt.rewrite.worklist import apply_rules
from graphopt.rules import admitted_rules
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class FuseBuiltin(Pass):
    """Replace patterns by fused operators such as MultiHeadAttention.

    Operators are chosen for the target: the target has kernels for them, and they are faster than the nodes
    that they replace. Without ``--portable`` this includes operators of ``com.microsoft``, and forms that
    onnxruntime fuses into operators that the opset lacks.

    Attributes:
        families: the families of rules to apply; all by default.
    """

    name: ClassVar[str] = "fuse-builtin"
    provides: ClassVar[frozenset[str]] = frozenset({FUSED_OPERATORS})
    for_speed: ClassVar[bool] = True
    families: tuple[str, ...] = ()

    def run(self, model: ir.Model, cx: Context) -> None:
        """Apply the rules of each phase to a fixpoint, also in bodies and functions."""
        rules = admitted_rules(cx.options, self.families, pass_=self.name)
        for phase in (1, 2):
            apply_rules([rule for rule in rules if rule.phase == phase], model, cx)
