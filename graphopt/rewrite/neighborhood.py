"""The nodes around a node of a pattern, up to a small distance."""

from __future__ import annotations

from collections.abc import Iterable

from graphopt import ir
from graphopt.ops import traits
from graphopt.rewrite.partial_match import display_name

#: Maximum distance, in nodes; also the maximum number of readers of a value that are visited.
_MAX_DISTANCE = 4


def near_readers(anchor: ir.Node) -> dict[ir.Node, tuple[ir.Node, ...]]:
    """The direct and indirect readers of ``anchor``, nearest first, each with the nodes between."""
    found: dict[ir.Node, tuple[ir.Node, ...]] = {}
    reached: dict[ir.Node, tuple[ir.Node, ...]] = {anchor: ()}
    for _ in range(_MAX_DISTANCE):
        reached = {
            user: (*between, node)
            for node, between in reached.items()
            for output in node.outputs
            for user in _users(output)
        }
        found |= {node: between for node, between in reached.items() if node not in found}
    return found


def _users(value: ir.Value) -> list[ir.Node]:
    users = [user for user in ir.readers(value) if user.graph is value.graph]
    return users if len(users) <= _MAX_DISTANCE else []


def find_value(name: str | None, nodes: Iterable[ir.Node]) -> ir.Value | None:
    """The value with this name that ``nodes`` or nearby producers read or write."""
    pending, visited = list(nodes), dict.fromkeys(nodes)
    for _ in range(_MAX_DISTANCE):
        for value in (value for node in pending for value in (*node.inputs, *node.outputs)):
            if value is not None and value.name == name:
                return value
        before = [value.producer() for node in pending for value in node.inputs if value is not None]
        pending = [node for node in dict.fromkeys(before) if node is not None and node not in visited]
        visited |= dict.fromkeys(pending)
    return None


def near_private_producers(anchor: ir.Node) -> list[ir.Node]:
    """Nearby producers of ``anchor``'s operands that have no other readers."""
    found, near = [], [anchor]
    for _ in range(_MAX_DISTANCE):
        near = [
            producer
            for node in near
            for value in node.inputs
            if value is not None
            and ir.only_reader(value) is node
            and (producer := value.producer()) is not None
        ]
        found += near
    return found


def private_views(nodes: Iterable[ir.Node]) -> list[ir.Node]:
    """The views that only ``nodes`` read, directly or through other such views."""
    found, pending = [], list(nodes)
    while pending:
        node = pending.pop()
        for value in node.inputs:
            producer = None if value is None else value.producer()
            if value is None or producer is None or ir.only_reader(value) is not node:
                continue
            if producer.domain == "" and producer.op_type in traits.VIEW:
                found.append(producer)
                pending.append(producer)
    return found


def sharing_hint(value: ir.Value) -> str | None:
    """The hint for a value that prevents a rewrite because it has other readers."""
    if value.is_graph_output():
        return f"the graph returns {value.name!r}: remove that output"
    readers = list(dict.fromkeys(ir.readers(value)))
    if len(readers) > 1:
        return f"it is read by {', '.join(map(display_name, readers[:4]))}: let only one of them read it"
    return None
