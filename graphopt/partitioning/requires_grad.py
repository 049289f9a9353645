"""The values that require a gradient, because they depend on the variables of differentiation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from graphopt import ir
from graphopt.autodiff import rule_registry
from graphopt.autodiff.reverse_mode import may_be_float
from graphopt.autodiff.rule_registry import NonDifferentiable
from graphopt.autodiff.wrt import wrt_names, wrt_values
from graphopt.context import Context
from graphopt.ops import graphopt_operators


def sources(model: ir.Model, wrt: str | Iterable[str], cx: Context) -> list[ir.Value]:
    """The variables of differentiation.

    Args:
        wrt: as for :func:`graphopt.autodiff.wrt.wrt_names`. Annotations of inputs and parameters take
            precedence over ``params``, ``inputs`` and ``all``.

    Raises:
        UsageError: a name is unknown, its value does not contain floating-point numbers, or ``wrt`` is empty.
    """
    names = wrt_names(model, wrt)
    values = {value.name: value for value in ir.values_of(model.graph) if value.name}
    found = wrt_values(names, values, cx)
    if names and all(names.values()):
        return found
    annotation = graphopt_operators.requires_grad_annotation
    found = [value for value in found if names[value.name or ""] or annotation(value) is not False]
    return list(dict.fromkeys([*found, *filter(annotation, values.values())]))


def requires_grad(
    starts: Iterable[ir.Value], cx: Context, no_grad: Callable[[ir.Node], bool]
) -> dict[ir.Value, None]:
    """``starts`` and all floating-point values that depend on them, also in bodies.

    Results of non-differentiable nodes and of ``no_grad`` nodes, and values annotated as requiring no
    gradient, are excluded. The operands of such nodes are not affected. Operators without a known gradient
    propagate the requirement.
    """
    found = dict.fromkeys(starts)
    pending = list(found)
    while pending:
        value = pending.pop()
        for user, index in value.uses():
            if user.graph is not None and not no_grad(user):
                _add_differentiable(_direct_dependents(user, index, cx), found, pending, cx)
        if value.is_graph_output():
            _add_differentiable(_values_after_body(value, cx, no_grad), found, pending, cx)
    return found


def _add_differentiable(
    values: Iterable[ir.Value], found: dict[ir.Value, None], pending: list[ir.Value], cx: Context
) -> None:
    for value in values:
        if (
            value not in found
            and value.name
            and graphopt_operators.requires_grad_annotation(value) is not False
            and may_be_float(value, cx)
        ):
            found[value] = None
            pending.append(value)


def _direct_dependents(node: ir.Node, index: int, cx: Context) -> Iterator[ir.Value]:
    """The direct dependents of input ``index`` of ``node``: its outputs, or inputs of its bodies."""
    if not ir.bodies(node):
        if not isinstance(rule_registry.find(node.domain, node.op_type, cx.version(node)), NonDifferentiable):
            yield from node.outputs
        return
    for body in ir.bodies(node):
        if node.op_type == "If":  # an If has only the condition as input
            continue
        yield from body.inputs[index : index + 1]


def _values_after_body(
    value: ir.Value, cx: Context, no_grad: Callable[[ir.Node], bool]
) -> Iterator[ir.Value]:
    """The values that ``value``, an output of a body, becomes outside the body or in the next iteration."""
    producer = value.producer()
    graph = producer.graph if producer is not None else value.graph
    holder = None if graph is None else cx.edit.scopes.holder(graph)
    if graph is None or holder is None or no_grad(holder):
        return
    # the body of a Loop returns a condition first, and has two inputs before the carried values
    ahead = 1 if holder.op_type == "Loop" else 0
    for index, output in enumerate(graph.outputs):
        if output is value and index >= ahead:
            place = index - ahead
            yield from holder.outputs[place : place + 1]
            if holder.op_type in ("Loop", "Scan") and place < _carried(holder, graph):
                yield from graph.inputs[place + 2 * ahead : place + 2 * ahead + 1]


def _carried(holder: ir.Node, body: ir.Graph) -> int:
    """The number of carried values."""
    if holder.op_type == "Loop":
        return len(body.inputs) - 2
    scanned = holder.attributes.get("num_scan_inputs")
    return len(body.inputs) - (0 if scanned is None else scanned.as_int())
