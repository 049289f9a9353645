"""A report of the groups of a model: their contents, and reasons for ungrouped nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from graphopt import ir
from graphopt.analysis.symbolic import Dim
from graphopt.context import Context, context_for
from graphopt.model_arguments import copy
from graphopt.ops import graphopt_operators
from graphopt.partitioning.group_kind import Grouping, GroupKind
from graphopt.partitioning.group_table import group_blocks
from graphopt.partitioning.propose_groups import Partition
from graphopt.partitioning.view_membership import ViewMembership, membership_reason, view_memberships
from graphopt.passes.pipelines import make_pipeline, registry
from graphopt.util.html_blocks import html_of
from graphopt.util.lazy_dataclass import dataclass
from graphopt.util.text_tables import counted

#: Domains of functions that are groups, which are not inlined.
_GROUP_DOMAINS = (graphopt_operators.AUTODIFF_GROUPS, graphopt_operators.NATIVE_DOMAIN)


@dataclass(frozen=True)
class Port:
    """An input or output of a group.

    Attributes:
        name: the name of the value.
        type: its type, such as ``f32[N, 4]``; empty if unknown.
        bytes: its size, possibly symbolic; ``None`` if unknown.
        requires_grad: whether it requires a gradient; ``None`` for kinds without gradients.
    """

    name: str
    type: str
    bytes: Dim | None
    requires_grad: bool | None = None

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        found: dict[str, Any] = {"name": self.name, "type": self.type, "bytes": _plain(self.bytes)}
        return found if self.requires_grad is None else {**found, "requires_grad": self.requires_grad}


@dataclass(frozen=True)
class Group:
    """A group of nodes.

    Attributes:
        name: its name in the report, and the name of its function.
        where: its graph: ``main``, or the node with the body.
        ops: the number of nodes by operator.
        inputs, outputs: its inputs, without constants that no other node reads, and its outputs.
        partition: the nodes themselves.
        saved: the bytes of memory traffic that the group saves; ``None`` if it is not estimated.
        views: the views in and next to the group, with reasons.
    """

    name: str
    where: str
    ops: dict[str, int]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    partition: Partition
    saved: Dim | None = None
    views: tuple[ViewMembership, ...] = ()

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of the nodes."""
        return tuple(map(ir.label, self.partition.nodes))

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        found = {
            "name": self.name,
            "where": self.where,
            "nodes": list(self.nodes),
            "ops": self.ops,
            "inputs": [port.to_dict() for port in self.inputs],
            "outputs": [port.to_dict() for port in self.outputs],
            "views": [choice.to_dict() for choice in self.views],
        }
        return found if self.saved is None else {**found, "saved": _plain(self.saved)}


@dataclass(frozen=True)
class Reason:
    """The reason why a node is in a group or in none.

    Attributes:
        node, op: the name of the node, and its operator.
        where: its graph, as for :class:`Group`.
        group: the name of the group, or ``None``.
        reason: the reason.
    """

    node: str
    op: str
    where: str
    group: str | None
    reason: str


@dataclass(frozen=True)
class Partitioned:
    """The groups of a model.

    Attributes:
        model: a copy of the model, in which the functions ``inlined`` are inlined if it has no groups.
        kind: the kind of groups.
        groups: the groups of the main graph, then the groups of bodies.
        reasons: a reason for each node, except for constants and nodes in bodies of grouped nodes.
        inlined: the names of inlined functions.
        original: the model before functions were inlined; ``None`` if none are.
    """

    model: ir.Model
    kind: GroupKind
    groups: tuple[Group, ...]
    reasons: tuple[Reason, ...]
    inlined: tuple[str, ...] = ()
    original: ir.Model | None = None

    def __repr__(self) -> str:
        inside = sum(sum(group.ops.values()) for group in self.groups)
        groups, nodes = counted(len(self.groups), "group"), counted(inside, "node")
        return f"Partitioned({self.kind.name}: {groups} with {nodes})"

    def _repr_html_(self) -> str:
        return html_of(group_blocks(self, everything=True))

    @property
    def policy(self) -> str:
        """The name of the kind of groups."""
        return self.kind.name

    def outlined(self) -> ir.Model:
        """An equivalent model of at least IR version 8, with a function for each group."""
        model = copy(self.model)
        with context_for(model) as cx:
            self.kind.raise_version(model, cx)
            make_pipeline([self.kind.outlining_pass]).run(model, cx)
        return model

    def obstacles(self) -> dict[str, str]:
        """The groups that later passes inline, such as groups without a gradient, with the reasons."""
        return self.kind.obstacles(self.outlined()) if self.groups else {}


def partitioned(model: ir.Model, kind: GroupKind) -> Partitioned:
    """The groups of ``model``, which is not modified; if it has none, those after inlining functions.

    Raises:
        UsageError: ``kind`` names an unknown value or scope.
    """
    found = _partitioned(copy(model), kind)
    called = [key for key in model.functions if key[0] not in _GROUP_DOMAINS]
    if found.groups or not called:
        return found
    names = tuple(dict.fromkeys(f"{domain}::{name}" for domain, name, _ in called))
    without = copy(model)
    with context_for(without) as cx:
        inline = registry().make("inline-functions", [("only", "+".join(names))])
        make_pipeline([inline]).run(without, cx)
    inner = _partitioned(without, kind)
    return replace(inner, inlined=names, original=found.model) if inner.groups else found


def _partitioned(model: ir.Model, kind: GroupKind) -> Partitioned:
    with context_for(model) as cx:
        groups, reasons = _described(kind.find(model, cx), kind.domain, model, cx)
    return Partitioned(model, kind, tuple(groups), tuple(reasons))


def _described(
    found: Grouping, domain: str, model: ir.Model, cx: Context
) -> tuple[list[Group], list[Reason]]:
    groups: list[Group] = []
    reasons: list[Reason] = []
    first = sum(key[0] == domain for key in model.functions)
    for proposal in found.proposals:
        holder = cx.edit.scopes.holder(proposal.graph)
        where = "main" if holder is None else ir.label(holder)
        group_of: dict[ir.Node, str] = {}
        views = view_memberships(proposal, found.default_reason)
        for partition in proposal.groups:
            name = f"group_{first + len(groups)}"
            group_of.update(dict.fromkeys(partition.nodes, name))
            groups.append(_group(partition, name, where, views[partition], found, cx))
        for node in proposal.graph:
            if node in group_of:
                why = membership_reason(node, proposal, found.default_reason)
                reasons.append(Reason(ir.label(node), node.op_type, where, group_of[node], why))
            elif node in proposal.ungrouped:
                reasons.append(Reason(ir.label(node), node.op_type, where, None, proposal.ungrouped[node]))
    return groups, reasons


def _group(
    partition: Partition, name: str, where: str, views: Sequence[ViewMembership], found: Grouping, cx: Context
) -> Group:
    def port(value: ir.Value) -> Port:
        dtype, shape = cx.dtype(value), cx.shape(value)
        known = dtype is not None and shape is not None
        kind = ir.type_text(dtype, shape) if known else ir.declared_type(value) or ""
        return Port(value.name or "", kind, cx.facts.nbytes(value), found.requires_grad(value))

    ops = Counter(node.op_type for node in partition.nodes)
    return Group(
        name,
        where,
        dict(ops.most_common()),
        tuple(map(port, found.inputs(partition))),
        tuple(map(port, partition.outputs)),
        partition,
        found.saved_bytes(partition),
        tuple(views),
    )


def _plain(size: Dim | None) -> int | str | None:
    """Bytes for JSON."""
    return size if size is None or isinstance(size, int) else str(size)
