"""Outline groups: replace each by a call of a function."""

from __future__ import annotations

import heapq
from collections.abc import Container, Iterable, Mapping, Sequence

from graphopt import ir
from graphopt.context import Context
from graphopt.partitioning.policy_interface import Policy
from graphopt.partitioning.propose_groups import Partition, edges
from graphopt.partitioning.redundant_nodes import duplicates

#: Constants of at most this many bytes are copied into functions; larger ones become inputs.
COPIED_BYTES = 1024
#: First opset with a Constant of any element type.
_ANY_CONSTANT = 9


def outline_groups(
    cx: Context,
    groups: Sequence[Partition],
    domain: str,
    policy: Policy,
    *,
    variables: Mapping[Partition, Container[ir.Value]] | None = None,
) -> dict[Partition, tuple[ir.Function, ir.Node]]:
    """Outline ``groups``, all of one graph, as functions ``group_0``, ``group_1``, … of ``domain``.

    Functions are numbered in the order of their calls, so that inlining and outlining again produces the same
    names. Outputs of a function are distinct: copies and repeated computations in a group are replaced by
    their first occurrence. (``unmergeAliasedOutputs`` and ``unmergeOutputsAlisingInputs`` of PyTorch's JIT
    move such nodes out again.) Small constants are copied into the function, so that its nodes alone
    determine the result.

    Args:
        variables: for each group, the constants that become inputs regardless of size; by default none.

    Returns:
        The function and the call of each group, in the order of the calls.
    """
    graph = groups[0].graph
    feeds = edges(list(graph), policy.is_ordered)
    cx.edit.reorder(graph, in_rows(graph, [group.nodes for group in groups], feeds))
    place = {node: index for index, node in enumerate(graph)}
    in_order = sorted(groups, key=lambda group: place[group.nodes[0]])
    members = {group: _without_aliases(group.nodes, cx) for group in in_order}
    for group, nodes in members.items():
        _take_constants(nodes, graph, (variables or {}).get(group, ()), cx)
    number = sum(key[0] == domain for key in cx.model.functions)
    made = {}
    for group, nodes in members.items():
        while (domain, f"group_{number}", "") in cx.model.functions:
            number += 1
        made[group] = ir.outline(cx.edit, nodes, domain, f"group_{number}", in_a_row=True)
        number += 1
    return made


def _without_aliases(nodes: Iterable[ir.Node], cx: Context) -> list[ir.Node]:
    """The nodes of a group without copies and repeated computations."""
    left = []
    nodes = list(nodes)
    for node in nodes:
        if node.op_type == "Identity" and node.domain == "" and node.inputs[0] is not None:
            cx.edit.replace(node.outputs[0], node.inputs[0])
            cx.edit.remove(node)
        else:
            left.append(node)
    kept = []
    for node, first in list(duplicates(left)):
        pairs = list(zip(node.outputs, first.outputs, strict=True))
        if node is first or not all(_can_merge(old, new, cx) for old, new in pairs):
            kept.append(node)
            continue
        for old, new in pairs:
            cx.edit.replace(old, new)
        cx.edit.remove(node)
    return kept


def _can_merge(old: ir.Value, new: ir.Value, cx: Context) -> bool:
    """Whether merging requires no Identity and exposes no declaration that may be wrong, as in ``cse``."""
    return cx.edit.can_replace(old, new) and (not new.is_graph_output() or cx.edit.trusts_shape(new))


def _take_constants(
    nodes: list[ir.Node], graph: ir.Graph, variables: Container[ir.Value], cx: Context
) -> None:
    """Copy small constants that ``nodes`` read to Constant nodes before them."""
    if ir.standard_version(cx.edit.scopes.imports(graph)) < _ANY_CONSTANT:
        return
    copies: dict[ir.Value, ir.Value] = {}
    made: list[ir.Node] = []
    for node in nodes:
        for index, value in enumerate(node.inputs):
            tensor = None if value is None or value in variables else ir.constant_of(value)
            if value is None or tensor is None or tensor.nbytes > COPIED_BYTES:
                continue
            if value not in copies:
                ir.read(value)
                constant = cx.edit.make_node("Constant", [], {"value": tensor}, name=value.name or "constant")
                copy = copies[value] = constant.outputs[0]
                copy.type, copy.shape = ir.TensorType(tensor.dtype), ir.Shape(tensor.shape.numpy())
                made.append(constant)
            cx.edit.set_input(node, index, copies[value])
    if made:
        cx.edit.insert_before(nodes[0], made)
        nodes[:0] = made
    for value in copies:
        drop_if_unread(value, cx)


def drop_if_unread(value: ir.Value, cx: Context) -> None:
    """Remove ``value``, a constant, if it is unused and callers can't override it."""
    if ir.is_read(value):
        return
    producer = value.producer()
    if producer is not None:
        cx.edit.remove(producer)
    elif value.is_initializer() and not ir.is_overridable(value) and not value.is_graph_input():
        cx.edit.remove_initializer(value)


def in_rows(
    graph: ir.Graph, groups: Sequence[Sequence[ir.Node]], readers_of: Sequence[Sequence[int]]
) -> list[ir.Node]:
    """A topological order of the nodes of ``graph`` in which the nodes of each group are consecutive.

    Ties are resolved by the original order. No path may leave a group and return to it, even through other
    groups.

    Args:
        graph: the graph.
        groups: disjoint groups of its nodes, each in the order of the graph.
        readers_of: the nodes that must run after each node, by index (:func:`edges`).
    """
    nodes = list(graph)
    unit_of = {node: group[-1] for group in groups for node in group}
    units: dict[ir.Node, list[ir.Node]] = {}
    for node in nodes:
        units.setdefault(unit_of.get(node, node), []).append(node)
    order = {node: place for place, node in enumerate(nodes)}
    waits = dict.fromkeys(units, 0)
    feeds: dict[ir.Node, list[ir.Node]] = {unit: [] for unit in units}
    for place, readers in enumerate(readers_of):
        unit = unit_of.get(nodes[place], nodes[place])
        for reader in readers:
            other = unit_of.get(nodes[reader], nodes[reader])
            if other is not unit:
                feeds[unit].append(other)
                waits[other] += 1
    ready = [order[unit] for unit, count in waits.items() if not count]
    heapq.heapify(ready)
    arranged: list[ir.Node] = []
    while ready:
        unit = nodes[heapq.heappop(ready)]
        arranged += units[unit]
        for other in feeds[unit]:
            waits[other] -= 1
            if not waits[other]:
                heapq.heappush(ready, order[other])
    assert len(arranged) == len(nodes), "groups depend on each other"
    return arranged
