"""Proposals: the groups of a graph that become kernels, and the reasons for all other nodes."""

from __future__ import annotations

from collections.abc import Sequence

from graphopt import ir
from graphopt.fusion.clustering import find_clusters
from graphopt.fusion.kernel_policy import FREE_REASON, FusionPolicy
from graphopt.fusion.loops.ir import CantFuse
from graphopt.fusion.lower_partition import kernel_inputs
from graphopt.ops import traits
from graphopt.partitioning.propose_groups import Partition, Proposal, propose_all

#: Maximum number of times that the last nodes of an unsupported group are removed.
_PEELS = 6


def propose_kernels(root: ir.Graph, policy: FusionPolicy) -> list[Proposal]:
    """The groups of ``root`` and its bodies; each has a kernel."""
    found = propose_all(root, policy)
    for proposal in found:
        clusters, proposal.groups = proposal.groups, list(policy.template_groups(proposal.graph).groups)
        for group in proposal.groups:
            for node in group.nodes:
                proposal.ungrouped.pop(node, None)
        for cluster in clusters:
            _propose(cluster.nodes, proposal, policy, _PEELS)
        place = {node: number for number, node in enumerate(proposal.graph)}
        proposal.groups.sort(key=lambda group: place[group.nodes[0]])
        proposal.ungrouped = dict(sorted(proposal.ungrouped.items(), key=lambda item: place[item[0]]))
    return found


def _propose(nodes: Sequence[ir.Node], proposal: Proposal, policy: FusionPolicy, peels: int) -> None:
    """Add groups of ``nodes`` to ``proposal``, and reasons for the nodes without a group.

    Args:
        peels: the maximum number of removals of the last nodes of an unsupported group.
    """
    for cluster in find_clusters(nodes, policy.cx):
        kept, edge = _without_free_ends(cluster.nodes)
        _exclude(edge, FREE_REASON, proposal)
        if not kept:
            continue
        group = Partition.of(kept, policy.kind)
        reason: str | None = cluster.reason
        if cluster.nest is not None:
            reason = policy.unprofitability(group.nodes, kernel_inputs(group), group.outputs)
        if reason is None:
            found = _with_kernel(group, proposal, policy)
            if isinstance(found, Partition):
                for node in found.nodes:
                    proposal.ungrouped.pop(node, None)
                proposal.groups.append(found)
                continue
            reason = found
            last = [node for node in kept if not any(reader in kept for reader in _readers(node))]
            _exclude(last, reason, proposal)
            rest = [node for node in kept if node not in last]
            if peels:
                _propose(rest, proposal, policy, peels - 1)
            else:
                _exclude(rest, reason, proposal)
        else:
            _exclude(kept, cluster.reason if len(kept) == 1 and cluster.reason else reason, proposal)


def _with_kernel(group: Partition, proposal: Proposal, policy: FusionPolicy) -> Partition | str:
    """``group``, or ``group`` with the moves before it, if that has a kernel; otherwise the reason for none.

    The inputs of a kernel must determine all its sizes. The result of a move may not: for a
    GroupNormalization, Reshape merges the spatial axes, which a later Reshape separates.
    """
    try:
        policy.note_kernel(group)
        return group
    except CantFuse as refusal:
        reason = str(refusal)
    moves = _moves_before(group, proposal, policy)
    if moves:
        larger = Partition.of([*moves, *group.nodes], policy.kind)
        try:
            policy.note_kernel(larger)
            return larger
        except CantFuse:
            pass
    return reason


def _moves_before(group: Partition, proposal: Proposal, policy: FusionPolicy) -> list[ir.Node]:
    """The ungrouped moves without cost that only ``group`` reads, in order of execution."""
    inside = dict.fromkeys(group.nodes)
    found: list[ir.Node] = []
    pending = list(group.inputs)
    while pending:
        node = pending.pop().producer()
        if node is None or node not in proposal.ungrouped or node in inside or not traits.is_alias(node):
            continue
        is_read_inside = all(reader in inside for reader in _readers(node))
        if (
            is_read_inside
            and not any(map(ir.Value.is_graph_output, node.outputs))
            and not policy.obstacle(node)
        ):
            inside[node] = None
            found.append(node)
            pending += [value for value in node.inputs if value is not None]
    return found[::-1]


def _exclude(nodes: Sequence[ir.Node], reason: str, proposal: Proposal) -> None:
    for node in nodes:
        proposal.ungrouped[node] = reason
        proposal.passthrough.pop(node, None)


def _readers(node: ir.Node) -> list[ir.Node]:
    return [reader for output in node.outputs for reader in ir.readers(output)]


def _without_free_ends(nodes: Sequence[ir.Node]) -> tuple[list[ir.Node], list[ir.Node]]:
    """``nodes`` without the moves of elements at the ends that cost nothing, and these moves."""
    kept = dict.fromkeys(nodes)
    edge: list[ir.Node] = []
    for order in (nodes, nodes[::-1]):
        for node in order:
            if node not in kept or not traits.is_alias(node):
                continue
            before = [value.producer() for value in node.inputs[:1] if value is not None]
            behind = _readers(node)
            first = not any(producer in kept for producer in before)
            last = not any(reader in kept for reader in behind)
            if first or last:
                del kept[node]
                edge.append(node)
    return list(kept), edge
