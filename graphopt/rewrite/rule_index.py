"""Find the rules that may apply to a node, by its operator and by those of its operands' producers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import NamedTuple, TypeAlias

from graphopt import ir
from graphopt.analysis.shape_inference.fills import may_fill
from graphopt.ops import traits
from graphopt.rewrite.compiled_pattern import CompiledPattern, compiled
from graphopt.rewrite.pattern import OpPattern
from graphopt.rewrite.rule import Rule
from graphopt.util.lazy_dataclass import dataclass

#: The operator that produces an operand; empty for a value without a producer, ``None`` for a missing one.
_Producer: TypeAlias = str | None
#: Maximum number of operands that are compared with :attr:`Rule.producers`: a Concat may have thousands.
_MAX_WIDTH = 4


class Candidate(NamedTuple):
    """A rule, and one of its patterns."""

    rule: Rule
    pattern: OpPattern
    compiled: CompiledPattern


@dataclass
class _Root:
    """The patterns whose root is one operator.

    Attributes:
        candidates: the patterns, with their rules.
        width: the number of operands whose producers decide which patterns fit.
        by_producers: the candidates that fit the producers of the operands; computed on first use.
    """

    candidates: list[Candidate] = field(default_factory=list)
    width: int = 0
    by_producers: dict[_Key, tuple[Candidate, ...]] = field(default_factory=dict)


class _Key(NamedTuple):
    """The properties of a node that decide which patterns fit.

    Attributes:
        swaps: whether the two operands of a commutative operator may be swapped.
        has_more: whether the node has further operands, whose producers are not listed.
        producers: the producers of the first operands.
    """

    swaps: bool
    has_more: bool
    producers: tuple[_Producer, ...]


class RuleIndex:
    """Pairs of rule and pattern, by the operators that the pattern requires at its root and before it.

    Attributes:
        has_workaround: whether one of the rules is a :attr:`Rule.workaround`.
    """

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._roots: dict[tuple[str, str], _Root] = {}
        self.has_workaround = False
        for rule in rules:
            self.has_workaround |= rule.workaround
            for pattern, _ in rule.patterns:
                for op_type in pattern.op_types:
                    root = self._roots.setdefault((pattern.domain, op_type), _Root())
                    root.candidates.append(Candidate(rule, pattern, compiled(pattern)))
                    if rule.producers:
                        root.width = max(root.width, _MAX_WIDTH)
                    for index, _ in pattern.needs:
                        swaps = index < 2 and traits.is_commutative(pattern.domain, op_type)
                        root.width = max(root.width, 2 if swaps else index + 1)

    def __contains__(self, node: ir.Node) -> bool:
        """Whether the operator of ``node`` is the root of a pattern."""
        return (node.domain, node.op_type) in self._roots

    def candidates(self, node: ir.Node) -> Sequence[Candidate]:
        """The rules and patterns that may match at ``node``, in the order of the rules."""
        root = self._roots.get((node.domain, node.op_type))
        if root is None:
            return ()
        inputs = node.inputs
        count, width = len(inputs), root.width
        swaps = count == 2 and traits.is_commutative(node.domain, node.op_type)
        key = _Key(swaps, count > width, tuple(map(_producer, inputs[:width])))
        found = root.by_producers.get(key)
        if found is None:
            found = root.by_producers[key] = tuple(
                candidate for candidate in root.candidates if _fits(candidate, key)
            )
        return found


def _producer(value: ir.Value | None) -> _Producer:
    if value is None:
        return None
    node = value.producer()
    return "" if node is None else node.op_type


def _fits(candidate: Candidate, key: _Key) -> bool:
    """Whether a node with the properties ``key`` may match ``candidate``."""
    rule, pattern = candidate.rule, candidate.pattern
    if rule.producers and not key.has_more and rule.producers.isdisjoint(key.producers):
        return False
    orders = [key.producers]
    if key.swaps and len(pattern.operands) == 2:
        orders.append((*key.producers[1::-1], *key.producers[2:]))
    return any(_fit_in_order(pattern, order) for order in orders)


def _fit_in_order(pattern: OpPattern, producers: Sequence[_Producer]) -> bool:
    for index, op_types in pattern.needs:
        producer = producers[index] if index < len(producers) else None
        if producer is None:
            return False
        if op_types is None:
            if producer not in ("", "Constant") and not may_fill(producer):
                return False
        elif producer not in op_types:
            return False
    return True
