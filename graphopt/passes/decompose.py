"""decompose: operators spelt out in simpler ones, for those who ask.

Nothing is spelt out by default, because onnxruntime runs these operators well whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from graphopt import ir
from graphopt.context import Context
from graphopt.errors import unknown
from graphopt.passes.base import Pass
from graphopt.rewrite.rule import Rule
from graphopt.rewrite.worklist import apply_rules
from graphopt.rules import admitted_rules, decompositions

#: Operators that can be spelt out, and how.
DECOMPOSITIONS: Mapping[str, Rule] = {
    how.patterns[0][0].op_types[0]: how for how in vars(decompositions).values() if isinstance(how, Rule)
}


@dataclass(frozen=True)
class Decompose(Pass):
    """Spell out the operators that ``ops`` names in simpler ones, such as ``decompose{ops=HardSwish}``.

    Nothing by default: onnxruntime runs them well whole. Known are Celu, GroupNormalization,
    HardSigmoid, HardSwish, LayerNormalization, Softsign and ThresholdedRelu.

    Attributes:
        ops: operators to spell out.

    Raises:
        UsageError: there is no decomposition of an operator.
    """

    name: ClassVar[str] = "decompose"
    ops: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for op_type in self.ops:
            if op_type not in DECOMPOSITIONS:
                raise unknown("decomposable operator", op_type, DECOMPOSITIONS, "graphopt passes decompose")

    def run(self, model: ir.Model, cx: Context) -> None:
        """Apply the decompositions that the options' numerics admit."""
        asked = [DECOMPOSITIONS[op_type] for op_type in self.ops]
        admitted = admitted_rules(cx.options, by=self.name)
        apply_rules([how for how in asked if how in admitted], model, cx)
