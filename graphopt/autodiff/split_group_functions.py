"""Differentiate all groups of a model: functions of the domain ``graphopt.autodiff``."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from graphopt import ir
from graphopt.autodiff.group_gradient import GroupGradient, SplitOptions, group_gradient
from graphopt.autodiff.reverse_mode import may_be_float
from graphopt.autodiff.rule_registry import NeedsOpset, NoGradient
from graphopt.context import Context, Refusal
from graphopt.errors import UnsupportedModel
from graphopt.ops import graphopt_operators

#: Domain, name and overload of a function.
Key = tuple[str, str, str]


def split_group_functions(
    cx: Context,
    owner: str,
    *,
    useful: Container[ir.Value] | None = None,
    strict_opset: bool = False,
    options: SplitOptions | None = None,
) -> dict[Key, GroupGradient]:
    """Split the function of each group into a forward and a backward function.

    All calls of a group also return the residuals. A group without a gradient is inlined, and the reason is
    reported as a refusal.

    Args:
        owner: the pass, for reports.
        useful: the outputs of calls whose cotangents may be needed; by default all that require a gradient.
        strict_opset: raise NeedsOpset if a gradient needs a newer opset; by default, the group is inlined.
        options: options of the splits.

    Returns:
        The gradient of each group.
    """
    model = cx.model
    found: dict[Key, GroupGradient] = {}
    for key, calls in calls_of_groups(model).items():
        function = model.functions[key]
        if (graphopt_operators.AUTODIFF_BACKWARD, *key[1:]) in model.functions:  # already differentiated
            continue
        action = cx.begin_rewrite(owner, calls[0])
        if action is None:
            continue
        outputs = [
            index
            for index in range(len(function.outputs))
            if any(_needs_gradient(call.outputs[index : index + 1], useful, cx) for call in calls)
        ]
        inputs = [index for index, value in enumerate(function.inputs) if _needs_gradient([value], None, cx)]
        try:
            if not outputs or not inputs:
                raise NoGradient(function.name, function.name, "no gradient passes it")
            gradient = group_gradient(
                function, calls, cx, outputs=outputs, inputs=inputs, options=options or SplitOptions()
            )
        except NeedsOpset as error:
            if strict_opset:
                raise
            reason = f"its gradient needs opset {error.version}"
        except NoGradient as error:
            reason = error.reason if error.op == function.name else error.message
        except UnsupportedModel as error:
            reason = error.message
        else:
            found[key] = gradient
            cx.edit.add_function(gradient.forward)
            cx.edit.add_function(gradient.backward)
            for call in calls:
                for index in range(len(call.outputs), len(gradient.forward.outputs)):
                    cx.edit.add_node_output(call, index)
            cx.end_rewrite(action, calls[0], calls)
            continue
        cx.refuse(Refusal(owner, ir.label(calls[0]), reason))
        cx.end_rewrite(action, calls[0], inline_group(function, calls, cx, owner))
    if found:
        cx.invalidate("differentiate")
    return found


def inline_group(function: ir.Function, calls: Sequence[ir.Node], cx: Context, owner: str) -> list[ir.Node]:
    """Inline all ``calls`` of the group ``function``, and remove it and its backward function.

    Whether the values of the group require a gradient is unknown afterwards.

    Returns:
        The nodes of the last call.
    """
    made: list[ir.Node] = []
    for call in calls:
        obstacle = ir.inline_obstacle(cx.edit, call)
        if obstacle is not None:
            cx.refuse(Refusal(owner, ir.label(call), obstacle))
            return made
        made = ir.inline_call(cx.edit, call, prefixed=False)
        for output in (output for node in made for output in node.outputs):
            cx.edit.remove_metadata(output, lambda key: key == graphopt_operators.REQUIRES_GRAD)
    _, name, overload = function.identifier()
    backward = cx.model.functions.get((graphopt_operators.AUTODIFF_BACKWARD, name, overload))
    for unused in (function, backward):
        if unused is not None:
            cx.edit.remove_function(unused)
    return made


def calls_of_groups(model: ir.Model) -> dict[Key, list[ir.Node]]:
    """The calls of each group, in order."""
    found: dict[Key, list[ir.Node]] = {
        key: [] for key in model.functions if key[0] == graphopt_operators.AUTODIFF_GROUPS
    }
    for graph in ir.graphs_of(model) if found else ():
        for node in graph:
            if node.op_identifier() in found:
                found[node.op_identifier()].append(node)
    return {key: calls for key, calls in found.items() if calls}


def _needs_gradient(values: Iterable[ir.Value], useful: Container[ir.Value] | None, cx: Context) -> bool:
    return any(
        graphopt_operators.requires_grad_annotation(value) is not False
        and may_be_float(value, cx)
        and (useful is None or value in useful)
        for value in values
    )
