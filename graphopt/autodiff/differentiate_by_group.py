"""Differentiate a model group by group.

The groups of ``create-autodiff-subgraphs`` are split into forward and backward functions. Reverse mode treats
the call of a group as one operator, whose gradient is a call of the backward function. Other nodes are
differentiated by their rules. Between groups, gradients are operators of ``graphopt.ad``, so that zero
gradients are removed before these operators are lowered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from graphopt import ir
from graphopt.autodiff import joint_graph, write_gradient_regions
from graphopt.autodiff.graph_builder import GraphBuilder
from graphopt.autodiff.group_gradient import GroupGradient, Operand, SplitOptions
from graphopt.autodiff.joint_graph import Joint
from graphopt.autodiff.losses import Loss
from graphopt.autodiff.primal_node import PrimalNode
from graphopt.autodiff.reverse_mode import ByRule, dependences
from graphopt.autodiff.rule_registry import Gradient, NoGradient, NonDifferentiable, Restart
from graphopt.autodiff.sequence_loop_builders import is_sequence
from graphopt.autodiff.split_group_functions import (
    Key,
    calls_of_groups,
    inline_group,
    split_group_functions,
)
from graphopt.autodiff.split_joint import Split, SplitReport, check_budget, split_joint
from graphopt.context import Context, Observer, Refusal
from graphopt.ops import graphopt_operators
from graphopt.parameters.selection import is_parameter
from graphopt.passes.pipelines import registry

#: The pass that refusals of groups are attributed to.
_OWNER = "differentiate"


class ByGroup(ByRule):
    """Differentiates calls of groups by their backward functions, and other nodes by their rules.

    Args:
        options: options of the splits of groups.
        minimum: the minimum size of groups, in distinct computations.
        lower: whether to replace the operators of ``graphopt.ad`` in the result.

    Attributes:
        groups: the gradient of each group.
        inlined: the reason why groups without a gradient were inlined, by name.
        blocked: nodes without a gradient.
    """

    def __init__(self, options: SplitOptions | None = None, minimum: int = 2, *, lower: bool = True) -> None:
        self._options, self._minimum = options or SplitOptions(), minimum
        self.lowering = "specialize-autograd-zero,lower-grad-of,dce" if lower else ""
        self.groups: dict[Key, GroupGradient] = {}
        self.inlined: dict[str, str] = {}
        self.blocked: dict[ir.Node, NoGradient] = {}
        self._errors: dict[str, NoGradient] = {}  # by the name of the node's first output

    def begin(self, cx: Context, ends: Sequence[str], wrt: Sequence[str]) -> None:
        """Outline and differentiate the groups of the main graph.

        The gradients of loops and branches recompute their bodies, which therefore have no groups.
        """
        self.groups, self.inlined = {}, {}
        self.blocked.clear()
        model = cx.model
        if not wrt:
            return
        if model.ir_version < ir.FUNCTIONS_SINCE:
            cx.edit.raise_ir_version(ir.FUNCTIONS_SINCE)
        create = registry().passes["create-autodiff-subgraphs"]
        own = [value.name or "" for value in model.graph.initializers.values() if is_parameter(value)]
        with ir.as_variables(model.graph, own):  # parameters stay initializers, whose contents may change
            create(minimum=self._minimum, wrt=tuple(wrt)).run(model, cx)  # type: ignore[call-arg]
        for key, calls in calls_of_groups(model).items():
            if any(call.graph is not model.graph for call in calls):
                inline_group(model.functions[key], calls, cx, _OWNER)
        named = [value for value in ir.values_of(model.graph) if value.name in frozenset(ends)]
        useful, reasons = dependences(model.graph, named, self, cx), _Reasons()
        cx.observers.append(reasons)
        self.groups = split_group_functions(
            cx, _OWNER, useful=useful, strict_opset=True, options=self._options
        )
        self.inlined = reasons.found

    def with_groups(self, joint: Joint) -> Joint:
        """``joint``, which this object differentiated, with the number of groups and the inlined ones."""
        return replace(joint, groups=len(self.groups), inlined=self.inlined)

    def rule(self, node: ir.Node, cx: Context) -> Gradient | NonDifferentiable | None:
        """The declaration for ``node``; none for a call of a group."""
        return None if node.op_identifier() in self.groups else super().rule(node, cx)

    def has_gradient(self, output: ir.Value, cx: Context) -> bool:
        """Whether ``output`` may have a gradient; for a group, whether the backward function reads it."""
        node = output.producer()
        group = None if node is None else self.groups.get(node.op_identifier())
        if node is not None and group is not None:
            return list(node.outputs).index(output) in group.cotangents
        return super().has_gradient(output, cx)

    def sources(self, node: ir.Node, outputs: Sequence[ir.Value], cx: Context) -> Sequence[ir.Value]:
        """The values to which cotangents may flow from some outputs of ``node``; precise for groups."""
        function = cx.model.functions.get(node.op_identifier())
        if function is None or function.domain != graphopt_operators.AUTODIFF_GROUPS:
            return super().sources(node, outputs, cx)
        ends = [formal for formal, own in zip(function.outputs, node.outputs, strict=False) if own in outputs]
        inner = dependences(function.graph, ends, ByRule(), cx)
        pairs = zip(function.inputs, node.inputs, strict=False)
        return [value for formal, value in pairs if formal in inner and value is not None]

    def add(self, op: GraphBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
        """An AutogradAdd."""
        return write_gradient_regions.add(op, a, b)

    def apply(
        self,
        op: GraphBuilder,
        node: PrimalNode,
        rule: Gradient | None,
        cotangents: Sequence[ir.Value | None],
    ) -> Sequence[tuple[ir.Value, ir.Value]]:
        """The cotangents of the values that ``node`` reads, as results of a GradOf."""
        group = self.groups.get(node.raw.op_identifier())
        if group is not None:
            return _call_backward(op, node, group, cotangents)
        read = [*node.inputs, *node.captured, *node.outputs]
        if any(value is not None and value.name and is_sequence(value, op.cx) for value in read):
            return super().apply(op, node, rule, cotangents)
        name = next(output.name or "" for output in node.outputs if output.name)
        if name in self._errors:
            self.blocked[node.raw] = self._errors[name]
            return []
        inner = op.begin_region(f"{node.label}_region")
        try:
            found = super().apply(inner, node, rule, cotangents)
        except NoGradient as error:
            self._errors[name] = error
            raise Restart from error  # rules may have changed bodies of the node
        return write_gradient_regions.end_region(op, inner, cotangents, found)

    def excluded(self, cx: Context) -> dict[ir.Value, NoGradient]:
        """The values whose gradients depend on nodes without a gradient, with the error of one such node."""
        found: dict[ir.Value, NoGradient] = {}
        for node in reversed(list(cx.model.graph)) if self.blocked else ():
            error = self.blocked.get(node)
            if isinstance(self.rule(node, cx), NonDifferentiable):
                continue
            for output in node.outputs:
                reason = error or found.get(output)
                if reason is not None and self.has_gradient(output, cx):
                    found.update(dict.fromkeys(self.sources(node, [output], cx), reason))
        return found


class _Reasons(Observer):
    """Collects the reasons why groups are inlined, by the names of their calls."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}

    def refused(self, refusal: Refusal) -> None:
        """Record a reason."""
        if refusal.rule == _OWNER:
            self.found[refusal.node] = refusal.reason


def _call_backward(
    op: GraphBuilder, node: PrimalNode, group: GroupGradient, cotangents: Sequence[ir.Value | None]
) -> Sequence[tuple[ir.Value, ir.Value]]:
    """The gradients of the inputs of a call, as results of a region that calls the backward function."""
    call = node.raw
    if not any(map(node.needs_grad, group.gradients)):
        return []
    op.stopped += group.stopped
    given: dict[int, ir.Value] = {}
    for index in group.cotangents:
        dy = cotangents[index]
        given[index] = write_gradient_regions.zero(op, call.outputs[index]) if dy is None else dy

    def value_of(operand: Operand) -> ir.Value | None:
        if operand.kind == "cotangent":
            return given[operand.index]
        return (call.inputs if operand.kind == "input" else call.outputs)[operand.index]

    inner = op.begin_region(f"{node.label}_region")
    results = inner.multi_output_node(
        group.backward.name,
        [value_of(operand) for operand in group.operands],
        domain=graphopt_operators.AUTODIFF_BACKWARD,
        outputs=len(group.gradients),
    )
    found = [
        (node.input(index), result)
        for index, result in zip(group.gradients, results, strict=True)
        if node.needs_grad(index)
    ]
    return write_gradient_regions.end_region(op, inner, list(given.values()), found)


def differentiate(
    model: ir.Model,
    loss: str | Loss | Sequence[str],
    wrt: str | Iterable[str],
    *,
    outputs: str = "all",
    optimize: bool = True,
) -> Joint:
    """The joint graph of ``model``, with calls of the forward and backward functions of its groups.

    Args, Raises: as for :func:`graphopt.autodiff.joint_graph.differentiate`, except that members of groups of
        names, such as ``params``, are omitted if their gradient depends on an operator without a gradient.
        The attribute ``excluded`` of the result has the reasons.
    """
    by = ByGroup()
    return by.with_groups(
        joint_graph.differentiate(model, loss, wrt, outputs=outputs, optimize=optimize, by=by)
    )


def split(
    model: ir.Model,
    loss: str | Loss | Sequence[str],
    wrt: str | Iterable[str],
    *,
    outputs: str = "all",
    memory_budget: float = 1.0,
    save_all: bool = False,
    dims: Mapping[str, int] | None = None,
) -> Split:
    """Like :func:`graphopt.autodiff.split_joint.split`, group by group; see :func:`differentiate`.

    The budget applies to each group, and to the values between groups.
    """
    check_budget(memory_budget)
    by = ByGroup(SplitOptions(memory_budget, save_all, dims or {}))
    joint = by.with_groups(joint_graph.differentiate(model, loss, wrt, outputs=outputs, scaled=True, by=by))
    found = split_joint(joint, memory_budget=memory_budget, save_all=save_all, dims=dims)
    calls = calls_of_groups(joint.model)
    reports = [by.groups[key].report for key, own in calls.items() if key in by.groups for _ in own]
    return replace(found, report=_total(found.report, reports))


def _total(outer: SplitReport, groups: Sequence[SplitReport]) -> SplitReport:
    """The report of a split whose groups have their own reports."""
    recomputed = Counter(outer.recomputed)
    for report in groups:
        recomputed.update(report.recomputed)
    return replace(
        outer,
        everything=outer.everything + sum(report.everything - report.saved for report in groups),
        flops=outer.flops + sum(report.flops for report in groups),
        recomputed_flops=outer.recomputed_flops + sum(report.recomputed_flops for report in groups),
        recomputed=dict(sorted(recomputed.items())),
    )
