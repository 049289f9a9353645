"""The groups of a model, for people to read: what is in them, and why the other nodes are in none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from graphopt import ir
from graphopt.analysis.dims import Dim
from graphopt.autodiff.asked import ALL
from graphopt.context import Context
from graphopt.driver import context_for, copy, make_pipeline
from graphopt.errors import unknown
from graphopt.ops import autodiff
from graphopt.partitioning.autodiff import AutodiffPolicy
from graphopt.partitioning.outlining import FUNCTIONS_SINCE
from graphopt.partitioning.passes.create_autodiff_subgraphs import CreateAutodiffSubgraphs
from graphopt.partitioning.propose import Partition, propose_all
from graphopt.profile import Profile
from graphopt.profile.declared import check_profile

#: Policies by name.
POLICIES = ("autodiff",)
_INSIDE = "a gradient is wanted of what it reads"
_BETWEEN = "it lies between nodes of the group"


@dataclass(frozen=True)
class Port:
    """A value that goes into a group or comes out of it.

    Attributes:
        name: of the value.
        type: such as ``f32[N,4]``; empty if unknown.
        bytes: what it takes, perhaps an expression over symbols; ``None`` if unknown.
        requires_grad: whether a gradient of it is wanted.
    """

    name: str
    type: str
    bytes: Dim | None
    requires_grad: bool

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        size = self.bytes if self.bytes is None or isinstance(self.bytes, int) else str(self.bytes)
        return {
            "name": self.name,
            "type": self.type,
            "bytes": size,
            "requires_grad": self.requires_grad,
        }


@dataclass(frozen=True)
class Group:
    """A group of nodes.

    Attributes:
        name: that of the function that it becomes.
        where: the graph that it stands in: ``main``, or the node whose body that is.
        ops: how often each operator is in it.
        inputs, outputs: what goes into it and comes out, constants left out that it has to itself.
        partition: the nodes themselves.
    """

    name: str
    where: str
    ops: dict[str, int]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    partition: Partition

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of the nodes."""
        return tuple(map(ir.label, self.partition.nodes))

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "name": self.name,
            "where": self.where,
            "nodes": list(self.nodes),
            "ops": self.ops,
            "inputs": [port.to_dict() for port in self.inputs],
            "outputs": [port.to_dict() for port in self.outputs],
        }


@dataclass(frozen=True)
class Reason:
    """Why a node is in a group, or in none.

    Attributes:
        group: the name of the group; ``None`` for none.
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
        model: a copy of it, which nothing has changed.
        policy: what the groups are for.
        groups: those of the main graph, then those of bodies.
        reasons: one for each node, but for constants and what is in bodies of grouped nodes.
        made_by: the pass that makes functions of the groups.
    """

    model: ir.Model
    policy: str
    groups: tuple[Group, ...]
    reasons: tuple[Reason, ...]
    made_by: CreateAutodiffSubgraphs

    def outlined(self) -> ir.Model:
        """A model that computes the same, with a function for each group.

        Functions came with IR version 8, to which older models are raised.
        """
        model = copy(self.model)
        with context_for(model) as cx:
            if model.ir_version < FUNCTIONS_SINCE:
                cx.edit.raise_ir_version(FUNCTIONS_SINCE)
            make_pipeline([self.made_by]).run(model, cx)
        return model


def partitioned(
    model: ir.Model,
    policy: str = "autodiff",
    *,
    wrt: str | Iterable[str] = ALL,
    minimum: int = 2,
    views: bool = True,
    no_grad: Sequence[str] = (),
    profile: Profile | None = None,
) -> Partitioned:
    """The groups of ``model``, which is left as it is; see :func:`graphopt.api.partition`."""
    if policy not in POLICIES:
        raise unknown("policy", policy, POLICIES, f"known are {', '.join(POLICIES)}", alike=0.0)
    model = copy(model)
    names = (wrt,) if isinstance(wrt, str) else tuple(wrt)
    with context_for(model) as cx:
        if profile is not None:
            _note(profile, model, cx)
        made_by = CreateAutodiffSubgraphs(minimum, views, names, tuple(no_grad))
        _check_scopes(no_grad, model)
        rules = made_by.policy(cx)
        groups, reasons = _told(rules, model, cx)
    return Partitioned(model, policy, tuple(groups), tuple(reasons), made_by)


def _check_scopes(scopes: Sequence[str], model: ir.Model) -> None:
    """Raise UsageError for a scope in which no node stands."""
    known: dict[str, None] = {}
    for graph in ir.graphs_of(model):
        for node in graph:
            known |= dict.fromkeys((*ir.origins(node), ir.label(node), *ir.noted_scopes(node)))
    for scope in scopes:
        if not any(name == scope or ir.is_within(name, scope) for name in known):
            raise unknown("node or scope", scope, known, "graphopt dump shows nodes")


def _note(profile: Profile, model: ir.Model, cx: Context) -> None:
    """Note on inputs whether a gradient of them was wanted."""
    check_profile(profile, model)
    for value in model.graph.inputs:
        wanted = profile.requires_grad.get(value.name or "")
        if wanted is not None:
            cx.edit.note(value, autodiff.REQUIRES_GRAD, str(wanted).lower())


def _told(policy: AutodiffPolicy, model: ir.Model, cx: Context) -> tuple[list[Group], list[Reason]]:
    groups: list[Group] = []
    reasons: list[Reason] = []
    first = sum(key[0] == autodiff.GROUPS for key in model.functions)
    for proposal in propose_all(model.graph, policy):
        holder = cx.edit.scopes.holder(proposal.graph)
        where = "main" if holder is None else ir.label(holder)
        group_of: dict[ir.Node, str] = {}
        for partition in proposal.groups:
            name = f"group_{first + len(groups)}"
            group_of.update(dict.fromkeys(partition.nodes, name))
            groups.append(_group(partition, name, where, policy, cx))
        for node in proposal.graph:
            if node in group_of:
                along = proposal.along.get(node)
                why = _INSIDE if along is None else f"{_BETWEEN}; {along}"
                reasons.append(Reason(ir.label(node), node.op_type, where, group_of[node], why))
            elif node in proposal.outside:
                reasons.append(Reason(ir.label(node), node.op_type, where, None, proposal.outside[node]))
    return groups, reasons


def _group(partition: Partition, name: str, where: str, policy: AutodiffPolicy, cx: Context) -> Group:
    def port(value: ir.Value) -> Port:
        dtype, shape = cx.dtype(value), cx.shape(value)
        known = dtype is not None and shape is not None
        kind = ir.type_text(dtype, shape) if known else ir.declared_type(value) or ""
        return Port(value.name or "", kind, cx.facts.nbytes(value), value in policy.wanted)

    ops = Counter(node.op_type for node in partition.nodes)
    own = [value for value in partition.inputs if value in policy.wanted or ir.constant_of(value) is None]
    return Group(
        name,
        where,
        dict(ops.most_common()),
        tuple(map(port, own)),
        tuple(map(port, partition.outputs)),
        partition,
    )
