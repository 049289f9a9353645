"""The kind of groups that are differentiated as one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar

from graphopt import ir
from graphopt.autodiff.wrt import ALL
from graphopt.context import Context, Observer, Refusal, context_for
from graphopt.errors import unknown
from graphopt.ops import graphopt_operators
from graphopt.partitioning.autodiff_policy import MEMBER_REASON, AutodiffPolicy
from graphopt.partitioning.propose_groups import Partition, Proposal, propose_all
from graphopt.profile import Profile
from graphopt.profile.annotations import annotate
from graphopt.profile.profile import check_profile
from graphopt.transforms.autodiff.create_autodiff_subgraphs import CreateAutodiffSubgraphs
from graphopt.transforms.autodiff.differentiate import Differentiate
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class AutodiffGroups:
    """Groups that are differentiated as one; a :class:`graphopt.partitioning.group_kind.GroupKind`.

    Attributes:
        minimum, views, wrt, no_grad: as for :class:`CreateAutodiffSubgraphs`.
        profile: the profile; it records whether inputs required a gradient.
    """

    minimum: int = 2
    views: bool = True
    wrt: tuple[str, ...] = (ALL,)
    no_grad: tuple[str, ...] = ()
    profile: Profile | None = None

    name: ClassVar[str] = "autodiff"
    domain: ClassVar[str] = graphopt_operators.AUTODIFF_GROUPS

    @property
    def outlining_pass(self) -> CreateAutodiffSubgraphs:
        """The pass that outlines the groups."""
        return CreateAutodiffSubgraphs(self.minimum, self.views, self.wrt, self.no_grad)

    def find(self, model: ir.Model, cx: Context) -> AutodiffGrouping:
        """The groups of ``model``.

        Raises:
            UsageError: a value or scope is unknown, or the profile is of another model.
        """
        if self.profile is not None:
            _note(self.profile, model, cx)
        _check_scopes(self.no_grad, model)
        return AutodiffGrouping(self.outlining_pass.policy(cx), model)

    def obstacles(self, model: ir.Model) -> dict[str, str]:
        """The groups that ``differentiate`` inlines, for the profile if there is one."""
        annotate(model, {} if self.profile is None else self.profile.values)
        reasons = _Reasons({})
        with context_for(model) as cx:
            cx.observers.append(reasons)
            Differentiate().run(model, cx)
        return reasons.found

    def raise_version(self, model: ir.Model, cx: Context) -> None:
        """Raise the IR version of a model to the first with functions; the pass skips older models."""
        if model.ir_version < ir.FUNCTIONS_SINCE:
            cx.edit.raise_ir_version(ir.FUNCTIONS_SINCE)


@dataclass(frozen=True)
class _Reasons(Observer):
    """Collects the reasons why groups are inlined, by name of the group."""

    found: dict[str, str]

    def refused(self, refusal: Refusal) -> None:
        """Record a reason."""
        self.found.setdefault(refusal.node, refusal.reason)


@dataclass(frozen=True)
class AutodiffGrouping:
    """The groups of one model; a :class:`graphopt.partitioning.group_kind.Grouping`."""

    policy: AutodiffPolicy
    model: ir.Model

    default_reason: ClassVar[str] = MEMBER_REASON

    @cached_property
    def proposals(self) -> list[Proposal]:
        """The groups, with reasons for ungrouped nodes."""
        return propose_all(self.model.graph, self.policy)

    def inputs(self, group: Partition) -> list[ir.Value]:
        """The inputs of ``group``, without constants that require no gradient."""
        requiring_grad = self.policy.requiring_grad
        return [value for value in group.inputs if value in requiring_grad or ir.constant_of(value) is None]

    def requires_grad(self, value: ir.Value) -> bool:
        """Whether ``value`` requires a gradient."""
        return value in self.policy.requiring_grad

    def saved_bytes(self, group: Partition) -> None:
        """Not estimated."""
        return None


def _check_scopes(scopes: Sequence[str], model: ir.Model) -> None:
    """Raise UsageError for a scope without nodes."""
    known: dict[str, None] = {}
    for graph in ir.graphs_of(model):
        for node in graph:
            known |= dict.fromkeys((*ir.origins(node), ir.label(node), *ir.noted_scopes(node)))
    for scope in scopes:
        if not any(name == scope or ir.is_within(name, scope) for name in known):
            raise unknown("node or scope", scope, known, "graphopt dump shows nodes")


def _note(profile: Profile, model: ir.Model, cx: Context) -> None:
    """Annotate inputs with whether they required a gradient."""
    check_profile(profile, model)
    for value in model.graph.inputs:
        requiring_grad = profile.requires_grad.get(value.name or "")
        if requiring_grad is not None:
            cx.edit.note(value, graphopt_operators.REQUIRES_GRAD, str(requiring_grad).lower())
