"""Propose the groups of a graph, with reasons for ungrouped nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import field

from graphopt import ir
from graphopt.partitioning.convex_groups import convex_groups, trimmed
from graphopt.partitioning.policy_interface import Decision, Policy, Role
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class Partition:
    """A convex group of nodes of one graph: no path leaves the group and returns, even through other groups.

    Attributes:
        nodes: the nodes, in the order of the graph, without Constant nodes.
        inputs: outer values that the nodes and their bodies read, in the order of first use.
        outputs: values of the nodes that other nodes read, or that the graph returns.
        kind: the kind of group.
    """

    nodes: tuple[ir.Node, ...]
    inputs: tuple[ir.Value, ...]
    outputs: tuple[ir.Value, ...]
    kind: str

    @classmethod
    def of(cls, nodes: Sequence[ir.Node], kind: str) -> Partition:
        """The group of ``nodes``, which must be convex."""
        inside = dict.fromkeys(nodes)
        inside.update(
            dict.fromkeys(n for node in nodes for body in ir.bodies(node) for n in ir.walk_nodes(body))
        )
        made = {output for node in nodes for output in node.outputs}
        read = dict.fromkeys(value for node in nodes for value in ir.reads(node))
        outputs = [
            value
            for node in nodes
            for value in node.outputs
            if value.is_graph_output() or any(reader not in inside for reader in ir.readers(value))
        ]
        return cls(tuple(nodes), tuple(value for value in read if value not in made), tuple(outputs), kind)

    @property
    def graph(self) -> ir.Graph:
        """The graph of the nodes."""
        graph = self.nodes[0].graph
        assert graph is not None
        return graph


@dataclass
class Proposal:
    """The groups of one graph.

    Attributes:
        graph: a main graph or a body.
        groups: the groups, in the order of their first nodes.
        ungrouped: the reason for each node in no group; without Constant nodes.
        passthrough: the reason why each pass-through node of a group is not a member.
    """

    graph: ir.Graph
    groups: list[Partition] = field(default_factory=list)
    ungrouped: dict[ir.Node, str] = field(default_factory=dict)
    passthrough: dict[ir.Node, str] = field(default_factory=dict)


def propose_all(root: ir.Graph, policy: Policy) -> list[Proposal]:
    """The groups of ``root`` and of the bodies in it.

    Bodies of grouped nodes have no separate groups. Bodies of operators outside the standard domain have no
    groups: onnxruntime fails if such bodies call functions.
    """
    found: list[Proposal] = []
    pending = [root]
    while pending:
        proposal = propose(pending.pop(), policy)
        found.append(proposal)
        holders = [node for node in proposal.ungrouped if node.attributes and node.domain == ""]
        pending.extend(reversed([body for node in holders for body in ir.bodies(node)]))
    return found


def propose(graph: ir.Graph, policy: Policy) -> Proposal:
    """The groups of ``graph`` under ``policy``, in time linear in its edges.

    A pass-through node is in a group if it is on a path of such nodes from one member to another.
    """
    nodes = [node for node in graph if not is_constant(node)]
    decisions = [policy.decide(node) for node in nodes]
    feeds = edges(nodes, policy.is_ordered)
    passthrough = _between(decisions, feeds)
    inside = [
        decision.role is Role.MEMBER or between
        for decision, between in zip(decisions, passthrough, strict=True)
    ]
    ungrouped = {
        node: decision.reason
        for node, decision, is_inside in zip(nodes, decisions, inside, strict=True)
        if not is_inside
    }
    found = Proposal(graph)
    for rough in convex_groups(inside, feeds):
        parts, edge = trimmed(rough, passthrough, feeds)
        ungrouped.update((nodes[index], decisions[index].reason) for index in edge)
        for part in parts:
            members = [nodes[index] for index in part]
            group = Partition.of(members, policy.kind)
            if policy.size(members) < policy.minimum:
                ungrouped.update(dict.fromkeys(members, f"its group has fewer than {policy.minimum} nodes"))
            elif not group.outputs:
                ungrouped.update(dict.fromkeys(members, "nothing reads what its group computes"))
            else:
                found.groups.append(group)
    grouped = {node for group in found.groups for node in group.nodes}
    found.ungrouped = {node: ungrouped[node] for node in nodes if node not in grouped}
    roles = zip(nodes, decisions, passthrough, strict=True)
    found.passthrough = {
        node: decision.reason
        for node, decision, is_passthrough in roles
        if is_passthrough and node in grouped
    }
    order = {node: place for place, node in enumerate(nodes)}
    found.groups.sort(key=lambda group: order[group.nodes[0]])
    return found


def is_constant(node: ir.Node) -> bool:
    """Whether ``node`` is a Constant: it has no operands and constrains no group."""
    return node.op_type == "Constant" and node.domain == ""


def edges(nodes: Sequence[ir.Node], is_ordered: Callable[[ir.Node], bool] | None = None) -> list[list[int]]:
    """The nodes that must run after each of ``nodes``, by index: readers, and the next ordered node."""
    place = {node: index for index, node in enumerate(nodes)}
    feeds: list[list[int]] = [[] for _ in nodes]
    ordered: int | None = None
    for index, node in enumerate(nodes):
        needed = dict.fromkeys(_places(ir.reads(node), place))
        if is_ordered is not None and is_ordered(node):
            if ordered is not None:
                needed[ordered] = None
            ordered = index
        for need in needed:
            feeds[need].append(index)
    return feeds


def _places(values: Iterable[ir.Value], place: dict[ir.Node, int]) -> Iterable[int]:
    for value in values:
        producer = value.producer()
        if producer in place:
            yield place[producer]


def _between(decisions: Sequence[Decision], feeds: Sequence[Sequence[int]]) -> list[bool]:
    """Whether each node is a pass-through node on a path between members.

    Other pass-through nodes must not be grouped: a node before or after all groups would split groups.
    """
    is_passthrough = [decision.role is Role.PASSTHROUGH for decision in decisions]
    core = [decision.role is Role.MEMBER for decision in decisions]
    after, before = list(core), list(core)
    for node, readers in enumerate(feeds):
        for reader in readers if after[node] else ():
            after[reader] = after[reader] or is_passthrough[reader]
    for node in reversed(range(len(feeds))):
        before[node] = before[node] or (
            is_passthrough[node] and any(before[reader] for reader in feeds[node])
        )
    return [
        passthrough and first and last
        for passthrough, first, last in zip(is_passthrough, after, before, strict=True)
    ]
