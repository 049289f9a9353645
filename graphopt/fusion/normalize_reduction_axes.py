"""Make axes of reductions nonnegative if kernels depend on the shapes of their results.

onnxruntime (1.31) does not reduce the shape of an empty tensor along negative axes: the mean of a ``0×64``
tensor over axis -1 has the shape ``0×64``. Kernels check the shapes of their inputs, and would fail.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from graphopt import ir
from graphopt.analysis.symbolic import known_nonzero
from graphopt.context import Context
from graphopt.ops import traits
from graphopt.partitioning.outline_groups import drop_if_unread
from graphopt.partitioning.propose_groups import Partition


def normalize_reduction_axes(model: ir.Model, groups: Iterable[Partition], cx: Context) -> None:
    """Make negative axes of reductions of possibly empty tensors nonnegative, if ``groups`` depend on them.

    Other reductions keep the shapes that onnxruntime computes. Axes that are not constant, and axes of
    tensors of unknown rank, are unchanged: the shapes of the results are unknown, so no kernel depends on
    them.
    """
    needed = _needed(model, groups)
    for graph in list(ir.graphs_of(model)):
        for node in list(graph):
            if node in needed and traits.reduces(node) and _may_be_empty(node, cx):
                _normalize(node, graph, cx)


def _needed(model: ir.Model, groups: Iterable[Partition]) -> set[ir.Node]:
    """The nodes of ``groups``, and all nodes whose results these depend on."""
    holders = {graph: node for outer in ir.graphs_of(model) for node in outer for graph in ir.bodies(node)}
    pending = [node for group in groups for node in group.nodes]
    found = set(pending)
    while pending:
        node = pending.pop()
        before = [value.producer() for value in ir.reads(node)]
        inside = [inner for body in ir.bodies(node) for inner in body]
        if (function := model.functions.get(node.op_identifier())) is not None:
            inside += function
        holder = None if node.graph is None else holders.get(node.graph)  # its inputs are those of the body
        for other in (*before, *inside, holder):
            if other is not None and other not in found:
                found.add(other)
                pending.append(other)
    return found


def _may_be_empty(node: ir.Node, cx: Context) -> bool:
    shape = None if not node.inputs or node.inputs[0] is None else cx.shape(node.inputs[0])
    return shape is not None and not all(map(known_nonzero, shape))


def _normalize(node: ir.Node, graph: ir.Graph, cx: Context) -> None:
    """Replace the negative axes of ``node``, a reduction of a tensor of known rank."""
    assert node.inputs[0] is not None
    rank = len(cx.shape(node.inputs[0]) or ())
    given = node.inputs[1] if len(node.inputs) > 1 else None
    if given is not None:
        axes = cx.constant(given)
        if axes is not None and (axes < 0).any():
            cx.edit.set_input(node, 1, _constant(np.where(axes < 0, axes + rank, axes), graph, cx))
            drop_if_unread(given, cx)
        return
    for name in ("axes", "axis"):
        attribute = node.attributes.get(name)
        if attribute is None or attribute.is_ref():
            continue
        if name == "axis" and attribute.value < 0:
            cx.edit.set_attribute(node, name, attribute.value + rank)
        elif name == "axes" and min(attribute.value, default=0) < 0:
            cx.edit.set_attribute(node, name, [axis % rank for axis in attribute.value])


def _constant(axes: np.ndarray, graph: ir.Graph, cx: Context) -> ir.Value:
    """A constant of ``graph`` with the contents ``axes``: an existing initializer, or a new one."""
    for value in graph.initializers.values():
        tensor = ir.constant_of(value)
        if tensor is None or tensor.size != axes.size or tensor.dtype is not ir.DataType.INT64:
            continue
        if np.array_equal(tensor.numpy(), axes):
            ir.read(value)
            return value
    return cx.edit.constant(graph, axes, "axes")
