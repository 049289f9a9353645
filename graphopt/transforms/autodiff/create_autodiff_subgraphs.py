"""create-autodiff-subgraphs: outline connected differentiable nodes as groups."""

from __future__ import annotations

from typing import ClassVar

from graphopt import ir
from graphopt.autodiff.wrt import ALL
from graphopt.context import Context, Refusal
from graphopt.ops import graphopt_operators
from graphopt.partitioning.autodiff_policy import MEMBER_REASON, AutodiffPolicy
from graphopt.partitioning.outline_groups import outline_groups
from graphopt.partitioning.propose_groups import Partition, propose_all
from graphopt.partitioning.view_membership import remark_on_views, view_memberships
from graphopt.passes.base import Pass
from graphopt.transforms.scalar.cse import CommonSubexpressionElimination
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class CreateAutodiffSubgraphs(Pass):
    """Outline connected differentiable nodes as functions of the domain ``graphopt.autodiff``.

    The operands of members require a gradient. Bodies of ungrouped nodes have separate groups. Inputs and
    outputs of groups are annotated with whether they require a gradient (``graphopt.requires_grad``). Random
    and stateful nodes, and guards, are never members, and keep their order.

    Modelled on ``CreateAutodiffSubgraphs`` of PyTorch's JIT.

    Attributes:
        minimum: minimum size of a group, in distinct computations.
        views: whether operators that only move elements may be members.
        wrt: the variables of differentiation: ``params``, ``inputs``, ``all`` for both, or names of values.
        no_grad: nodes, or scopes of nodes, with disabled gradients.
    """

    minimum: int = 2
    views: bool = True
    wrt: tuple[str, ...] = (ALL,)
    no_grad: tuple[str, ...] = ()

    name: ClassVar[str] = "create-autodiff-subgraphs"

    def run(self, model: ir.Model, cx: Context) -> None:
        """Find all groups, outline them graph by graph, and run cse."""
        reason = ir.functions_obstacle(model)
        if reason is not None:
            cx.refuse(Refusal(self.name, "", reason))
            return
        policy = self.policy(cx)
        made = False
        for proposal in propose_all(model.graph, policy):
            views = view_memberships(proposal, MEMBER_REASON)
            started = [(group, cx.begin_rewrite(self.name, group.nodes[0])) for group in proposal.groups]
            allowed = [(group, action) for group, action in started if action is not None]
            calls = make_functions(cx, [group for group, _ in allowed], policy)
            for (group, action), call in zip(allowed, calls, strict=True):
                remark_on_views(call.op_type, views[group], cx, self.name)
                cx.end_rewrite(action, group.nodes[0], [call])
            made = made or bool(calls)
        if made:
            cx.invalidate("outline")
            CommonSubexpressionElimination().run(model, cx)

    def policy(self, cx: Context) -> AutodiffPolicy:
        """The policy for members of groups."""
        return AutodiffPolicy(cx, self.wrt, self.minimum, self.views, self.no_grad)


def make_functions(cx: Context, groups: list[Partition], policy: AutodiffPolicy) -> list[ir.Node]:
    """Outline ``groups``, all of one graph, and annotate their inputs and outputs; returns the calls."""
    if not groups:
        return []
    requiring_grad = policy.requiring_grad
    made = outline_groups(
        cx,
        groups,
        graphopt_operators.AUTODIFF_GROUPS,
        policy,
        variables=dict.fromkeys(groups, requiring_grad),
    )
    for function, call in made.values():
        for value, inner in zip(call.outputs, function.outputs, strict=True):
            if inner in requiring_grad:
                requiring_grad[value] = None
            _note(cx, value, inner in requiring_grad)
    for function, call in made.values():
        for outer, formal in zip(call.inputs, function.inputs, strict=True):
            _note(cx, formal, outer in requiring_grad)
    return [made[group][1] for group in groups]


def _note(cx: Context, value: ir.Value, requiring_grad: bool) -> None:
    cx.edit.note(value, graphopt_operators.REQUIRES_GRAD, str(requiring_grad).lower())
