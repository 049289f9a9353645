"""Element types that the signatures of onnxruntime's operators tell, where no shape rule does."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import zip_longest

from graphopt import ir
from graphopt.analysis.facts import UNKNOWN, Fact
from graphopt.analysis.node_facts import NodeFacts
from graphopt.ops.vendor_types import result_types


def with_vendor_types(given: NodeFacts, found: Fact | Iterable[Fact] | None) -> list[Fact]:
    """The facts of a node's outputs that a shape rule found, with element types where they lack."""
    facts = [found] if isinstance(found, Fact) else list(found or ())
    pairs = zip_longest(facts, result_types(given.node.op_type))
    return [_typed(given, fact or UNKNOWN, type_) for fact, type_ in pairs]


def _typed(given: NodeFacts, fact: Fact, type_: str | tuple[int, ...] | None) -> Fact:
    if fact.dtype is not None or fact.container is not None or not type_:
        return fact
    if isinstance(type_, str):
        return Fact(getattr(ir.DataType, type_.upper()), fact.shape)
    known = (given.dtype(index) for index in type_)
    return Fact(next((dtype for dtype in known if dtype is not None), None), fact.shape)
