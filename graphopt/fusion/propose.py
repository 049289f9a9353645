"""The groups of a graph that run as kernels, and why the other nodes are in none."""

from __future__ import annotations

from collections.abc import Sequence

from graphopt import ir
from graphopt.context import Context
from graphopt.fusion.functions import compiled
from graphopt.fusion.index import CantFuse
from graphopt.fusion.left import touches_convolution
from graphopt.fusion.operator import find
from graphopt.fusion.planner import Planned, plan
from graphopt.fusion.policy import FusionPolicy, is_free
from graphopt.fusion.signature import Signature
from graphopt.partitioning.propose import Partition, Proposal, propose_all


def propose_kernels(root: ir.Graph, policy: FusionPolicy) -> list[Proposal]:
    """The groups of ``root``, and of bodies in it; each can be compiled."""
    found = propose_all(root, policy)
    for proposal in found:
        clusters, proposal.groups = proposal.groups, []
        for cluster in clusters:
            for planned in plan(cluster.nodes, policy.cx):
                _decide(planned, proposal, policy)
        place = {node: number for number, node in enumerate(proposal.graph)}
        proposal.groups.sort(key=lambda group: place[group.nodes[0]])
        proposal.outside = dict(sorted(proposal.outside.items(), key=lambda item: place[item[0]]))
    return found


def _decide(planned: Planned, proposal: Proposal, policy: FusionPolicy) -> None:
    nodes, edge = _without_free_ends(planned.nodes)
    proposal.outside.update(dict.fromkeys(edge, "it moves no element in memory"))
    if not nodes:
        return
    group = Partition.of(nodes, policy.kind)
    reason = planned.why if planned.nest is None else None
    reason = reason or _why_not(group, policy)
    if reason is None:
        proposal.groups.append(group)
    else:
        lonely = reason if len(nodes) > 1 or not planned.why else planned.why
        proposal.outside.update(dict.fromkeys(nodes, lonely))
    for node in (*nodes, *edge):
        if reason is not None or node in edge:
            proposal.along.pop(node, None)


def _why_not(group: Partition, policy: FusionPolicy) -> str | None:
    cx = policy.cx
    inputs = kernel_inputs(group, cx)
    reason = policy.why_not(group.nodes, inputs, group.outputs)
    if reason is not None:
        return reason
    if not any(_reduces(node, cx) for node in group.nodes):
        beside = touches_convolution(group.nodes)
        if beside is not None:
            return (
                f"it stands beside {beside}, and a kernel there breaks onnxruntime's layout of convolutions"
            )
    try:
        signature = Signature.of(inputs, group.outputs, cx)
        imports = cx.edit.scopes.imports(group.graph)
        compiled(group.nodes, inputs, group.outputs, imports, signature, "group")
    except CantFuse as refusal:
        return str(refusal)
    return None


def kernel_inputs(group: Partition, cx: Context) -> list[ir.Value]:
    """What the kernel of a group reads: constants of one element, and those that tell sizes, are inside."""
    return [value for value in group.inputs if not is_inside(value, group, cx)]


def is_inside(value: ir.Value, group: Partition, cx: Context) -> bool:
    """Whether ``value``, which a group reads, becomes part of it."""
    tensor = ir.constant_of(value)
    if tensor is None:
        return False
    if tensor.size == 1:
        return True
    return all(index > 0 and _is_told(reader, cx) for reader, index in value.uses() if reader in group.nodes)


def _is_told(node: ir.Node, cx: Context) -> bool:
    """Whether the inputs of ``node``, but for the first, tell sizes and axes, and are not computed with."""
    operator = find(node, cx.version(node))
    moves = operator is not None and operator.moves and node.op_type != "Concat"
    return moves or node.op_type.startswith("Reduce")


def _reduces(node: ir.Node, cx: Context) -> bool:
    operator = find(node, cx.version(node))
    return operator is not None and operator.reduces


def _without_free_ends(nodes: Sequence[ir.Node]) -> tuple[list[ir.Node], list[ir.Node]]:
    """``nodes`` without moves at the beginning and at the end that cost nothing, and these."""
    kept = dict.fromkeys(nodes)
    edge: list[ir.Node] = []
    for order in (nodes, nodes[::-1]):
        for node in order:
            if node not in kept or not is_free(node):
                continue
            before = [value.producer() for value in node.inputs[:1] if value is not None]
            behind = [reader for output in node.outputs for reader in ir.readers(output)]
            first = not any(producer in kept for producer in before)
            last = not any(reader in kept for reader in behind)
            if first or last:
                del kept[node]
                edge.append(node)
    return list(kept), edge
