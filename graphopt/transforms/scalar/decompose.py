"""decompose: expansion of operators into simpler ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, wraps
from typing import Any, ClassVar

from graphopt import ir
from graphopt.analysis.symbolic import product, typical_size
from graphopt.context import Context
from graphopt.errors import unknown
from graphopt.ort.target import Target
from graphopt.passes.base import Pass
from graphopt.rewrite import Builder, Match, Outcome
from graphopt.rewrite.rule import Rule
from graphopt.rewrite.worklist import apply_rules
from graphopt.rules import admitted_rules, all_rules, extension_decompositions
from graphopt.util.lazy_dataclass import dataclass

#: By fuser, the operators to expand by default on the CPU, with the minimum number of elements of their
#: first input. onnxruntime has no kernel for GroupNormalization, and a slow one for ReduceLogSumExp. These
#: operators and Shrink have no native kernels, but the simpler operators have.
DEFAULTS: Mapping[str, Mapping[str, int]] = {
    "builtin": {"GroupNormalization": 0, "ReduceLogSumExp": 4096},
    "native": {"GroupNormalization": 0, "ReduceLogSumExp": 64, "Shrink": 64},
}


@cache
def decompositions() -> Mapping[str, Sequence[Rule]]:
    """Decomposition rules by operator, as ``Name`` or ``domain::Name``, including rules of other packages."""
    found: dict[str, list[Rule]] = {}
    for rule in all_rules():
        if rule.pass_ == Decompose.name:
            root = rule.patterns[0][0]
            for op_type in root.op_types:
                found.setdefault(f"{root.domain}::{op_type}" if root.domain else op_type, []).append(rule)
    return found


@dataclass(frozen=True)
class Decompose(Pass):
    """Expand operators into simpler ones: those named in ``ops``, as in ``decompose{ops=HardSwish}``.

    By default, on CPUs, the pass expands GroupNormalization and, with many elements, ReduceLogSumExp; in
    pipelines with native kernels also Shrink, because a kernel computes the simpler operators in one pass
    over memory. onnxruntime has fast kernels for other operators. On other devices, the pass expands
    operators with a kernel on the CPU only, such as Celu. By default, it also
    applies decompositions of other packages (entry points ``graphopt.decompositions``). It always applies
    those of the caller (``rules=[…]`` with ``pass_="decompose"``).

    The pass supports Celu, GroupNormalization, HardSigmoid, HardSwish, LayerNormalization, ReduceLogSumExp,
    Shrink, Softsign, ThresholdedRelu, and operators for which other packages provide rules with
    ``pass_="decompose"``. An operator of another domain is named ``domain::Name``.

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
        requested = [rule for op_type in self.ops for rule in decompositions()[op_type]]
        chosen = requested if self.ops else list(_by_default(cx))
        own = [rule for rule in cx.options.rules if rule.pass_ == self.name]
        admitted = {rule.name for rule in admitted_rules(cx.options, pass_=self.name)}
        apply_rules([rule for rule in (*chosen, *own) if rule.name in admitted], model, cx)


def _by_default(cx: Context) -> Iterator[Rule]:
    """The decompositions that run by default."""
    table = DEFAULTS["native" if cx.options.kernels else "builtin"]
    if cx.options.device.kind == "cpu":
        for op_type, least in table.items():
            yield from (_sized(rule, least) for rule in decompositions()[op_type])
    else:
        for op_type, rules in decompositions().items():
            domain, _, name = op_type.rpartition("::")
            if not cx.target.kernels(name, domain) and Target().kernels(name, domain):
                yield from rules
    yield from extension_decompositions()


def _sized(rule: Rule, least: int) -> Rule:
    """``rule``, only for nodes whose first input has at least ``least`` elements at typical sizes."""
    if not least:
        return rule

    @wraps(rule.replace)
    def decompose(op: Builder, m: Match, **arguments: Any) -> Outcome:
        shape = m.shape(m.root.inputs[0])
        elements = None if shape is None else typical_size(product(shape))
        if elements is None or elements < least:
            return m.no(f"it has fewer than {least} elements", m.root.inputs[0])
        return rule.replace(op, m, **{name: arguments[name] for name in rule.arguments})

    return replace(rule, replace=decompose)
