"""Make axes of reductions nonnegative if kernels depend on the shapes of their results.

onnxruntime (1.31) does not reduce the shape of an empty tensor along negative axes: the mean of a ``0×64``
tensor over axis -1 has the shape ``0×64``. Kernels check the shapes of their inputs, and would fail.
"""

from __future__ import annotations

import numpy as np

from graphopt import ir
from graphopt.analysis.symbolic import known_nonzero
from graphopt.context import Context
from graphopt.ops import traits
from graphopt.partitioning.outline_groups import drop_if_unread


def normalize_reduction_axes(model: ir.Model, cx: Context) -> None:
    """Make negative axes of reductions of possibly empty tensors nonnegative, in all graphs of ``model``.

    Axes that are not constant, and axes of tensors of unknown rank, are unchanged: the shapes of the results
    are unknown, so no kernel depends on them.
    """
    for graph in list(ir.graphs_of(model)):
        for node in list(graph):
            if traits.reduces(node) and _may_be_empty(node, cx):
                _normalize(node, graph, cx)


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
