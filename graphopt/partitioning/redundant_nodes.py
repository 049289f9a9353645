"""Redundant nodes of a group."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator

from graphopt import ir
from graphopt.ops import traits

#: Operators without a computation.
_TRIVIAL = frozenset({"Identity", "Constant"})


def duplicates(nodes: Iterable[ir.Node]) -> Iterator[tuple[ir.Node, ir.Node]]:
    """Each node, in order, with the first node that computes the same result, possibly itself.

    Nodes with bodies are considered different. All nodes must be deterministic.
    """
    stands_for: dict[ir.Value, ir.Value] = {}
    firsts: dict[Hashable, ir.Node] = {}
    for node in nodes:
        first = firsts.setdefault(_key(node, stands_for), node)
        if first is not node:
            stands_for.update(
                (output, stands_for.get(found, found))
                for output, found in zip(node.outputs, first.outputs, strict=True)
            )
        yield node, first


def _key(node: ir.Node, stands_for: dict[ir.Value, ir.Value]) -> Hashable:
    if node.attributes and ir.bodies(node):
        return node
    inputs = [None if value is None else stands_for.get(value, value) for value in node.inputs]
    order: tuple[int, ...] = tuple(map(id, inputs))
    if len(inputs) == 2 and traits.commutes_exactly(node.domain, node.op_type):
        order = tuple(sorted(order))
    used = tuple(bool(output.name) for output in node.outputs)
    attributes = tuple(sorted((name, ir.attribute_key(item)) for name, item in node.attributes.items()))
    return node.op_identifier(), order, used, attributes


def executed(nodes: Iterable[ir.Node], enough: int) -> int:
    """The number of distinct computations of ``nodes``, counted up to ``enough``."""
    count = 0
    for node, first in duplicates(nodes):
        count += first is node and not (node.domain == "" and node.op_type in _TRIVIAL)
        if count >= enough:
            break
    return count
