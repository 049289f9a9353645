"""decompose: expansion of operators into simpler ones, on request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

from graphopt import ir
from graphopt.context import Context
from graphopt.errors import unknown
from graphopt.passes.base import Pass
from graphopt.rewrite.rule import Rule
from graphopt.rewrite.worklist import apply_rules
from graphopt.rules import admitted_rules, all_rules


@cache
def decompositions() -> Mapping[str, Sequence[Rule]]:
    """Decomposition rules by operator, as ``Name`` or ``domain::Name``, including rules of other packages."""
    found: dict[str, list[Rule]] = {}
    for how in all_rules():
        if how.pass_ == Decompose.name:
            root = how.patterns[0][0]
            for op_type in root.op_types:
                found.setdefault(f"{root.domain}::{op_type}" if root.domain else op_type, []).append(how)
    return found


@dataclass(frozen=True)
class Decompose(Pass):
    """Expand the operators named in ``ops`` into simpler ones, as in ``decompose{ops=HardSwish}``.

    By default, no operator is expanded, because onnxruntime has fast kernels. The pass supports Celu,
    GroupNormalization, HardSigmoid, HardSwish, LayerNormalization, Softsign, ThresholdedRelu, and operators
    for which other packages provide rules with ``pass_="decompose"``. An operator of another domain is named
    ``domain::Name``.

    Attributes:
        ops: operators to expand.

    Raises:
        UsageError: an operator has no decomposition.
    """

    name: ClassVar[str] = "decompose"
    ops: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for op_type in self.ops:
            if op_type not in decompositions():
                raise unknown("decomposable operator", op_type, decompositions(), "graphopt passes decompose")

    def run(self, model: ir.Model, cx: Context) -> None:
        """Apply the decompositions that the options' numerics admit."""
        asked = [how for op_type in self.ops for how in decompositions()[op_type]]
        admitted = admitted_rules(cx.options, pass_=self.name)
        apply_rules([how for how in asked if how in admitted], model, cx)
