"""Operators that select elements by index, or return indices."""

from __future__ import annotations

from graphopt import ir
from graphopt.analysis.shape_inference.node_facts import NodeFacts, shape_rule
from graphopt.analysis.shape_inference.rules.layout import as_array
from graphopt.analysis.shape_inference.value_facts import Fact
from graphopt.analysis.symbolic import Dim, bounds


@shape_rule("Gather")
def gather(node: NodeFacts) -> Fact:
    """The shape of the indices replaces ``axis``."""
    shape, indices = node.shape(0), node.shape(1)
    if shape is None or indices is None:
        return Fact(node.dtype(0))
    axis = node.axis(len(shape), 0)
    result = Fact(node.dtype(0), shape[:axis] + indices + shape[axis + 1 :])
    contents = node.contents(0)
    if contents is None:
        return result
    picks, size = node.static_contents(1), shape[axis]
    if picks is not None and isinstance(size, int) and all(-size <= pick < size for pick in picks):
        if len(shape) == 1:
            result.contents = tuple(contents[pick] for pick in picks)
        elif ir.all_ints(result.shape) is not None:
            array = as_array(contents, shape).take(picks, axis)
            result.contents = tuple(array.reshape(-1).tolist())
    return result


@shape_rule("GatherElements")
def gather_elements(node: NodeFacts) -> Fact:
    return Fact(node.dtype(0), node.shape(1))


@shape_rule("GatherND")
def gather_nd(node: NodeFacts) -> Fact:
    """The last dim of the indices is the number of indexed axes, which follow the batch dims."""
    shape, indices = node.shape(0), node.shape(1)
    if shape is None or indices is None or not isinstance(indices[-1], int):
        return Fact(node.dtype(0))
    indexed = node.attr_int("batch_dims", 0) + indices[-1]
    return Fact(node.dtype(0), indices[:-1] + shape[indexed:])


@shape_rule("Scatter", "ScatterElements", "ScatterND", "TensorScatter")
def scatter(node: NodeFacts) -> Fact:
    return node.like(0)


@shape_rule("OneHot")
def one_hot(node: NodeFacts) -> Fact:
    """An axis of size ``depth`` is inserted at ``axis``."""
    shape = node.shape(0)
    if shape is None:
        return Fact(node.dtype(2))
    axis = node.axis(len(shape) + 1, -1)
    depth = node.named_contents(1)
    if depth is None:
        array = node.constant_array(1)
        depth = None if array is None else (int(array.reshape(())),)
    dim: Dim = node.fresh() if depth is None else depth[0]
    return Fact(node.dtype(2), (*shape[:axis], dim, *shape[axis:]))


@shape_rule("NonZero")
def non_zero(node: NodeFacts) -> Fact:
    """[rank, nonzero elements]; the rank of a scalar counts as 1."""
    rank = node.rank(0)
    rows: Dim = node.fresh() if rank is None else max(rank, 1)
    return Fact(ir.DataType.INT64, (rows, node.fresh()))


@shape_rule("TopK")
def top_k(node: NodeFacts) -> list[Fact]:
    """Values and indices; ``k`` is an input since opset 10."""
    shape = node.shape(0)
    if shape is None:
        return [Fact(node.dtype(0)), Fact(ir.DataType.INT64)]
    axis = node.axis(len(shape), -1)
    k: Dim
    if node.version < 10:
        k = node.attr_int("k", 0)
    else:
        contents = node.named_contents(1)
        k = node.fresh(hi=bounds(shape[axis])[1]) if contents is None else contents[0]
    result = (*shape[:axis], k, *shape[axis + 1 :])
    return [Fact(node.dtype(0), result), Fact(ir.DataType.INT64, result)]


@shape_rule("Compress")
def compress(node: NodeFacts) -> Fact:
    """The number of selected elements depends on the condition; without ``axis``, the result is flat."""
    if node.attr("axis") is None:
        return Fact(node.dtype(0), (node.fresh(),))
    shape = node.shape(0)
    if shape is None:
        return Fact(node.dtype(0))
    axis = node.axis(len(shape), 0)
    most = bounds(shape[axis])[1]
    return Fact(node.dtype(0), (*shape[:axis], node.fresh(hi=most), *shape[axis + 1 :]))
