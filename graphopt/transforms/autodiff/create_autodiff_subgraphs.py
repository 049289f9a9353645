"""create-autodiff-subgraphs: neighbours with gradients become groups that are differentiated as one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from graphopt import ir
from graphopt.autodiff.wrt import ALL
from graphopt.context import Context, Refusal
from graphopt.ops import dialects
from graphopt.partitioning.autodiff import AutodiffPolicy
from graphopt.partitioning.outlining import FUNCTIONS_SINCE, outline_groups
from graphopt.partitioning.propose import Partition, propose_all
from graphopt.passes.base import Pass
from graphopt.transforms.scalar.cse import CommonSubexpressionElimination


@dataclass(frozen=True)
class CreateAutodiffSubgraphs(Pass):
    """Put neighbouring nodes that have gradients into functions of the domain ``graphopt.autodiff``.

    A gradient has to be wanted of what they read. Bodies have groups of their own where the nodes that
    hold them are in none. Which outputs a gradient is wanted of is noted on them
    (``graphopt.requires_grad``). Random and stateful nodes, and guards, stay outside, in their order.

    The seed is ``CreateAutodiffSubgraphs`` of PyTorch's JIT.

    Attributes:
        minimum: nodes of a group; each computation counts once.
        views: whether operators that only move elements may be in groups.
        wrt: what is differentiated by: ``params``, ``inputs``, ``all`` of both, or names of values.
        no_grad: nodes, or scopes of them, in which no gradient is wanted.
    """

    minimum: int = 2
    views: bool = True
    wrt: tuple[str, ...] = (ALL,)
    no_grad: tuple[str, ...] = ()

    name: ClassVar[str] = "create-autodiff-subgraphs"

    def run(self, model: ir.Model, cx: Context) -> None:
        """Find all groups, then make functions of them, graph by graph; then merge what is computed twice."""
        if model.ir_version < FUNCTIONS_SINCE:
            reason = f"functions came with IR version {FUNCTIONS_SINCE}, the model has {model.ir_version}"
            cx.refuse(Refusal(self.name, "", reason))
            return
        policy = self.policy(cx)
        made = False
        for proposal in propose_all(model.graph, policy):
            asked = [(group, cx.begin_rewrite(self.name, group.nodes[0])) for group in proposal.groups]
            allowed = [(group, action) for group, action in asked if action is not None]
            calls = make_functions(cx, [group for group, _ in allowed], policy)
            for (group, action), call in zip(allowed, calls, strict=True):
                cx.end_rewrite(action, group.nodes[0], [call])
            made = made or bool(calls)
        if made:
            cx.invalidate("outline")
            CommonSubexpressionElimination().run(model, cx)

    def policy(self, cx: Context) -> AutodiffPolicy:
        """What may be in a group."""
        return AutodiffPolicy(cx, self.wrt, self.minimum, self.views, self.no_grad)


def make_functions(cx: Context, groups: list[Partition], policy: AutodiffPolicy) -> list[ir.Node]:
    """Make functions of ``groups``, all of one graph, and note what is known of them; returns the calls."""
    if not groups:
        return []
    wanted = policy.wanted
    made = outline_groups(cx, groups, dialects.AUTODIFF_GROUPS, policy, variables=wanted)
    for function, call in made.values():
        for value, inner in zip(call.outputs, function.outputs, strict=True):
            if inner in wanted:
                wanted[value] = None
            _note(cx, value, inner in wanted)
    for function, call in made.values():
        for outer, formal in zip(call.inputs, function.inputs, strict=True):
            _note(cx, formal, outer in wanted)
    return [made[group][1] for group in groups]


def _note(cx: Context, value: ir.Value, wanted: bool) -> None:
    cx.edit.note(value, dialects.REQUIRES_GRAD, str(wanted).lower())
