"""check-strict-fusion: check that all nodes of a scope became one fused operator.

The counterpart of ``CheckStrictFusion`` in PyTorch's JIT executor, which checks blocks marked by
``torch.jit.strict_fusion``. Here users name a scope of the exporter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from graphopt import ir
from graphopt.context import Context
from graphopt.errors import NotFused
from graphopt.ops import graphopt_operators
from graphopt.passes.base import Pass
from graphopt.rewrite.fused_operators import groups_in, is_fused, main_node, native_calls
from graphopt.rewrite.missed_fusions import Missed, missed_in
from graphopt.rewrite.partial_match import display_name
from graphopt.rewrite.rule import Rule
from graphopt.rules import fusing_rules
from graphopt.util.lazy_dataclass import dataclass
from graphopt.util.text_tables import counted


@dataclass(frozen=True)
class CheckStrictFusion(Pass):
    """Check that scopes became one fused operator each, as in ``check-strict-fusion{scopes=/layer.0/attn}``.

    A scope is the name of a node of the original model, or a common prefix of names. All nodes that originate
    from the scope must be in one fused operator, or in one group with a kernel; constants are ignored. The
    scopes are given by ``scopes`` (``a+b``) and ``--strict-fusion``. The model is not changed.

    Attributes:
        scopes: the scopes.

    Raises:
        NotFused: some nodes of a scope are not fused (with the reasons), or the scope became several
            operators.
    """

    name: ClassVar[str] = "check-strict-fusion"
    scopes: tuple[str, ...] = ()

    def run(self, model: ir.Model, cx: Context) -> None:
        """Check each scope."""
        rules = fusing_rules(cx.options)
        members = {**dict.fromkeys(self.scopes, frozenset[str]()), **cx.options.strict_fusion}
        for name, names in members.items():
            _check(_Scope(name, names), model, rules, cx)


@dataclass(frozen=True)
class _Scope:
    """Nodes of the original model: those with names that begin with ``name``, and ``members``."""

    name: str
    members: frozenset[str]

    def contains(self, node: ir.Node) -> bool:
        """Whether ``node`` originates from the scope."""
        return any(name in self.members or ir.is_within(name, self.name) for name in ir.origins(node))


def _check(scope: _Scope, model: ir.Model, rules: Sequence[Rule], cx: Context) -> None:
    inside = {
        node
        for key, function in model.functions.items()
        if key[0] == graphopt_operators.NATIVE_DOMAIN
        for node in function
    }
    everywhere = [group for group in groups_in(model, rules) if not inside.issuperset(group)]
    everywhere += [[call] for call in native_calls(model)]
    groups = [group for group in everywhere if any(map(scope.contains, group))]
    fused = dict.fromkeys(node for group in groups for node in group)
    nodes = [
        node
        for graph in ir.graphs_of(model)
        for node in graph
        if node.op_type != "Constant" and node not in inside
    ]
    strays = [node for node in nodes if node not in fused and scope.contains(node)]
    if strays:
        missed = list(missed_in(model, rules, cx))
        nothing = not any(map(is_fused, everywhere))
        raise _left_out(scope.name, strays, missed, cx.ungrouped, nothing=nothing)
    groups = list(filter(is_fused, groups))
    if not groups:
        raise NotFused(f"{scope.name!r} became no fused operator: no node of it is left")
    if len(groups) > 1:
        operators = ", ".join(display_name(main_node(group)) for group in groups)
        raise NotFused(f"{scope.name!r} became several fused operators: {operators}")


def _left_out(
    scope: str,
    strays: Sequence[ir.Node],
    missed: Sequence[Missed],
    ungrouped: Mapping[str, str],
    *,
    nothing: bool,
) -> NotFused:
    """The error that lists ``strays`` by the reasons why they are not in a fused operator.

    Args:
        ungrouped: reasons for nodes without a group with a kernel, if groups were requested.
        nothing: whether the model has no fused operators.
    """
    reasons: dict[str, list[str]] = {}
    far = False
    for node in strays:
        ungrouped_reason = ungrouped.get(ir.label(node))
        missing = _nearest(node, missed) if ungrouped_reason is None else None
        far |= missing is None and ungrouped_reason is None
        reason = (
            "no fusion pattern matches these nodes"
            if missing is None
            else f"{missing.rule}: {missing.reason}"
        )
        reason = reason if ungrouped_reason is None else f"fuse-groups: {ungrouped_reason}"
        if missing is not None and missing.hint is not None:
            reason += f" ({missing.hint})"
        reasons.setdefault(reason, []).append(display_name(node))
    hint = "name a smaller scope, without the nodes that no fusion pattern matches" if far else None
    if far and nothing:
        hint = f"nothing in the model is fused: let fuse-builtin go in front, as -O3 does, or {hint}"
    return NotFused(
        f"not all of {scope!r} became one fused operator: {counted(len(strays), 'node')} left out, "
        f"such as {display_name(strays[0])}",
        hint=hint,
        details=[
            line for reason, names in reasons.items() for line in (reason, *(f"  {name}" for name in names))
        ],
    )


def _nearest(node: ir.Node, missed: Sequence[Missed]) -> Missed | None:
    """The nearest missed pattern around ``node``."""
    names = ir.origins(node)
    return next((missing for missing in missed if any(name in missing.origins for name in names)), None)
