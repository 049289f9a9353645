"""Specialize a backward model for cotangents that are known to be zero.

A backward model is linear in its cotangents, so that values depending only on zero cotangents are zero and
need not be computed. The counterpart in PyTorch's profiling executor is ``specializeAutogradZero``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from graphopt import ir
from graphopt.autodiff.reverse_mode import may_be_float
from graphopt.context import Context, context_for
from graphopt.model_arguments import copy
from graphopt.passes.pipelines import make_pipeline


def specialize_zero_cotangents(
    backward: ir.Model, cotangents: Iterable[str], absent: Iterable[str]
) -> ir.Model:
    """A copy of ``backward`` for runs in which some cotangents are zero.

    Args:
        backward: a model whose outputs are linear in its inputs ``cotangents``.
        absent: the cotangents that are zero. These inputs are removed, except inputs whose shape is read.

    Returns:
        A model without the outputs that are zero.
    """
    model, removed = copy(backward), frozenset(absent)
    graph = model.graph
    with context_for(model) as cx:
        names = frozenset(cotangents)
        given = [value for value in graph.inputs if value.name in names]
        zero = _zeros(graph, given, removed, cx)
        for node in list(graph):
            _drop_zeros(node, zero, cx)
        cx.edit.set_outputs(graph, [value for value in graph.outputs if value not in zero])
        make_pipeline("dce").run(model, cx)
        kept = [value for value in graph.inputs if value.name not in removed or ir.is_read(value)]
        cx.edit.set_inputs(graph, kept)
    with context_for(model) as cx:
        make_pipeline("joint").run(model, cx)
    return model


def _zeros(
    graph: ir.Graph, given: Sequence[ir.Value], absent: frozenset[str | None], cx: Context
) -> dict[ir.Value, None]:
    """The values that depend on absent cotangents and on no other cotangents."""
    zero = dict.fromkeys(value for value in given if value.name in absent)
    present = dict.fromkeys(value for value in given if value.name not in absent)
    for node in graph:
        read = ir.reads(node)
        results = [
            output for output in node.outputs if output.name and may_be_float(output, cx)
        ]  # excludes shapes
        if any(value in present for value in read):
            present |= dict.fromkeys(results)
        elif any(value in zero for value in read):
            zero |= dict.fromkeys(results)
    return zero


def _drop_zeros(node: ir.Node, zero: dict[ir.Value, None], cx: Context) -> None:
    """Replace a sum, which is not zero, by the sum of its nonzero terms."""
    if node.domain or node.op_type not in ("Add", "Sub", "Sum") or node.outputs[0] in zero:
        return
    left = [value for value in node.inputs if value is not None and value not in zero]
    if len(left) == len(node.inputs) or not left:
        return
    result = node.outputs[0]
    if not all(cx.facts.shape_equal(value, result) for value in left):
        return  # a zero term may broadcast the other terms
    if len(left) > 1:
        new = cx.edit.make_node("Sum", left, name=ir.label(node))
    else:
        negative = node.op_type == "Sub" and node.inputs[0] in zero
        new = cx.edit.make_node("Neg" if negative else "Identity", left, name=ir.label(node))
    cx.edit.insert_before(node, [new])
    cx.edit.replace(result, new.outputs[0])
    cx.edit.remove(node)
