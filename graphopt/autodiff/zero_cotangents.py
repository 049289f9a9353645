"""Backward models for outputs some of which have no gradient.

The counterpart of ``specializeAutogradZero`` of PyTorch's profiling executor: what flows back is linear in
the gradients that are given, so that what depends on absent ones alone is zero, and need not be computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from graphopt import ir
from graphopt.autodiff.reverse import is_real
from graphopt.context import Context
from graphopt.driver import context_for, copy, make_pipeline


def specialize_zero_cotangents(
    backward: ir.Model, cotangents: Iterable[str], absent: Iterable[str]
) -> ir.Model:
    """A copy of ``backward`` for runs in which some of the gradients that it takes are zero.

    Args:
        backward: takes gradients ``cotangents`` among its inputs; all that it returns is linear in them.
        absent: those that are zero. Such inputs go, but for those of which the shape is read.

    Returns:
        A model that lacks the outputs which are zero.
    """
    model, gone = copy(backward), frozenset(absent)
    graph = model.graph
    with context_for(model) as cx:
        names = frozenset(cotangents)
        given = [value for value in graph.inputs if value.name in names]
        zero = _zeros(graph, given, gone, cx)
        for node in list(graph):
            _drop_zeros(node, zero, cx)
        cx.edit.set_outputs(graph, [value for value in graph.outputs if value not in zero])
        make_pipeline("dce").run(model, cx)
        kept = [value for value in graph.inputs if value.name not in gone or ir.is_read(value)]
        cx.edit.set_inputs(graph, kept)
    with context_for(model) as cx:
        make_pipeline("joint").run(model, cx)
    return model


def _zeros(
    graph: ir.Graph, given: Sequence[ir.Value], absent: frozenset[str | None], cx: Context
) -> dict[ir.Value, None]:
    """The values that depend on absent gradients and on no other."""
    zero = dict.fromkeys(value for value in given if value.name in absent)
    present = dict.fromkeys(value for value in given if value.name not in absent)
    for node in graph:
        read = ir.reads(node)
        results = [output for output in node.outputs if output.name and is_real(output, cx)]  # not shapes
        if any(value in present for value in read):
            present |= dict.fromkeys(results)
        elif any(value in zero for value in read):
            zero |= dict.fromkeys(results)
    return zero


def _drop_zeros(node: ir.Node, zero: dict[ir.Value, None], cx: Context) -> None:
    """Replace a sum with zeros by what is left of it; its result is not zero."""
    if node.domain or node.op_type not in ("Add", "Sub", "Sum") or node.outputs[0] in zero:
        return
    left = [value for value in node.inputs if value is not None and value not in zero]
    if len(left) == len(node.inputs) or not left:
        return
    result = node.outputs[0]
    if not all(cx.facts.shape_equal(value, result) for value in left):
        return  # zeros may have broadcast it
    if len(left) > 1:
        made = cx.edit.make_node("Sum", left, name=ir.label(node))
    else:
        negative = node.op_type == "Sub" and node.inputs[0] in zero
        made = cx.edit.make_node("Neg" if negative else "Identity", left, name=ir.label(node))
    cx.edit.insert_before(node, [made])
    cx.edit.replace(result, made.outputs[0])
    cx.edit.remove(node)
