"""Which groups of nodes there can be in a graph, and why the other nodes are in none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from graphopt import ir
from graphopt.partitioning.convex import convex_groups, trimmed
from graphopt.partitioning.policy import Decision, Policy, Role


@dataclass(frozen=True)
class Partition:
    """A group of nodes of one graph. No way leads out of it and back, nor through other groups.

    Attributes:
        nodes: in the order of the graph; constants that they read are not among them.
        inputs: values from outside that they, or their bodies, read, in the order of first reading.
        outputs: their values that others read, or that the graph returns.
        kind: what it is for.
    """

    nodes: tuple[ir.Node, ...]
    inputs: tuple[ir.Value, ...]
    outputs: tuple[ir.Value, ...]
    kind: str

    @classmethod
    def of(cls, nodes: Sequence[ir.Node], kind: str) -> Partition:
        """The group of ``nodes``, which have to be convex."""
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
        """The graph that the nodes stand in."""
        graph = self.nodes[0].graph
        assert graph is not None
        return graph


@dataclass
class Proposal:
    """The groups of one graph.

    Attributes:
        graph: a main graph or a body.
        groups: in the order of their first nodes.
        outside: by node in no group, why; constants are not among them.
        along: by node that only goes along in a group, why it is no reason for one.
    """

    graph: ir.Graph
    groups: list[Partition] = field(default_factory=list)
    ungrouped: dict[ir.Node, str] = field(default_factory=dict)
    passthrough: dict[ir.Node, str] = field(default_factory=dict)


def propose_all(root: ir.Graph, policy: Policy) -> list[Proposal]:
    """The groups of ``root``, and of bodies in it.

    A body whose holder is in a group has none of its own; nor has one of another domain than the standard's,
    on which onnxruntime fails if it calls functions.
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
    """The groups of ``graph`` that ``policy`` asks for, in time that grows with its edges.

    Nodes that go along are in a group where a way leads through them alone from one node inside to another.
    """
    nodes = [node for node in graph if not is_constant(node)]
    decisions = [policy.decide(node) for node in nodes]
    feeds = edges(nodes, policy)
    passthrough = _between(decisions, feeds)
    inside = [
        decision.place is Role.MEMBER or between
        for decision, between in zip(decisions, passthrough, strict=True)
    ]
    ungrouped = {
        node: decision.reason
        for node, decision, taken in zip(nodes, decisions, inside, strict=True)
        if not taken
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
    told = zip(nodes, decisions, passthrough, strict=True)
    found.passthrough = {node: decision.reason for node, decision, goes in told if goes and node in grouped}
    order = {node: place for place, node in enumerate(nodes)}
    found.groups.sort(key=lambda group: order[group.nodes[0]])
    return found


def is_constant(node: ir.Node) -> bool:
    """Whether ``node`` is a Constant, which reads nothing and so is in nobody's way."""
    return node.op_type == "Constant" and node.domain == ""


def edges(nodes: Sequence[ir.Node], policy: Policy | None = None) -> list[list[int]]:
    """By index, which of ``nodes`` have to run after each: they, or their bodies, read it, or have a turn."""
    place = {node: index for index, node in enumerate(nodes)}
    feeds: list[list[int]] = [[] for _ in nodes]
    turn: int | None = None
    for index, node in enumerate(nodes):
        needed = dict.fromkeys(_places(ir.reads(node), place))
        if policy is not None and policy.is_ordered(node):
            if turn is not None:
                needed[turn] = None
            turn = index
        for need in needed:
            feeds[need].append(index)
    return feeds


def _places(values: Iterable[ir.Value], place: dict[ir.Node, int]) -> Iterable[int]:
    for value in values:
        producer = value.producer()
        if producer in place:
            yield place[producer]


def _between(decisions: Sequence[Decision], feeds: Sequence[Sequence[int]]) -> list[bool]:
    """Which nodes that go along lie between nodes inside, with nothing outside in between.

    Others must not count: one before or behind all groups, counted as inside, would tear groups apart.
    """
    goes = [decision.place is Role.PASSTHROUGH for decision in decisions]
    core = [decision.place is Role.MEMBER for decision in decisions]
    after, before = list(core), list(core)
    for node, readers in enumerate(feeds):
        for reader in readers if after[node] else ():
            after[reader] = after[reader] or goes[reader]
    for node in reversed(range(len(feeds))):
        before[node] = before[node] or (goes[node] and any(before[reader] for reader in feeds[node]))
    return [
        passthrough and first and last for passthrough, first, last in zip(goes, after, before, strict=True)
    ]
