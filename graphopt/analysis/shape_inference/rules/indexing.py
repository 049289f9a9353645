"""Operators that pick elements by index, or give indices."""

from __future__ import annotations

from graphopt import ir
from graphopt.analysis.shape_inference.facts import Fact
from graphopt.analysis.shape_inference.node import NodeFacts, shape_rule
from graphopt.analysis.shape_inference.rules.layout import as_array
from graphopt.analysis.symbolic import Dim, bounds


@shape_rule("Gather")
def gather(given: NodeFacts) -> Fact:
    """The shape of the indices takes the place of ``axis``."""
    shape, indices = given.shape(0), given.shape(1)
    if shape is None or indices is None:
        return Fact(given.dtype(0))
    axis = given.axis(len(shape), 0)
    result = Fact(given.dtype(0), shape[:axis] + indices + shape[axis + 1 :])
    contents = given.contents(0)
    if contents is None:
        return result
    picks, size = given.static_contents(1), shape[axis]
    if picks is not None and isinstance(size, int) and all(-size <= pick < size for pick in picks):
        if len(shape) == 1:
            result.contents = tuple(contents[pick] for pick in picks)
        elif ir.all_ints(result.shape) is not None:
            array = as_array(contents, shape).take(picks, axis)
            result.contents = tuple(array.reshape(-1).tolist())
    return result


@shape_rule("GatherElements")
def gather_elements(given: NodeFacts) -> Fact:
    return Fact(given.dtype(0), given.shape(1))


@shape_rule("GatherND")
def gather_nd(given: NodeFacts) -> Fact:
    """The last dim of the indices tells how many axes, past the batch dims, they index."""
    shape, indices = given.shape(0), given.shape(1)
    if shape is None or indices is None or not isinstance(indices[-1], int):
        return Fact(given.dtype(0))
    indexed = given.attr_int("batch_dims", 0) + indices[-1]
    return Fact(given.dtype(0), indices[:-1] + shape[indexed:])


@shape_rule("Scatter", "ScatterElements", "ScatterND", "TensorScatter")
def scatter(given: NodeFacts) -> Fact:
    return given.like(0)


@shape_rule("OneHot")
def one_hot(given: NodeFacts) -> Fact:
    """An axis of size ``depth`` is put in at ``axis``."""
    shape = given.shape(0)
    if shape is None:
        return Fact(given.dtype(2))
    axis = given.axis(len(shape) + 1, -1)
    depth = given.named_contents(1)
    if depth is None:
        array = given.constant_array(1)
        depth = None if array is None else (int(array.reshape(())),)
    dim: Dim = given.fresh() if depth is None else depth[0]
    return Fact(given.dtype(2), (*shape[:axis], dim, *shape[axis:]))


@shape_rule("NonZero")
def non_zero(given: NodeFacts) -> Fact:
    """A row for each axis (one for a scalar), a column for each element that is not zero."""
    rank = given.rank(0)
    rows: Dim = given.fresh() if rank is None else max(rank, 1)
    return Fact(ir.DataType.INT64, (rows, given.fresh()))


@shape_rule("TopK")
def top_k(given: NodeFacts) -> list[Fact]:
    """Values and indices; ``k`` is an input since opset 10."""
    shape = given.shape(0)
    if shape is None:
        return [Fact(given.dtype(0)), Fact(ir.DataType.INT64)]
    axis = given.axis(len(shape), -1)
    k: Dim
    if given.version < 10:
        k = given.attr_int("k", 0)
    else:
        contents = given.named_contents(1)
        k = given.fresh(hi=bounds(shape[axis])[1]) if contents is None else contents[0]
    result = (*shape[:axis], k, *shape[axis + 1 :])
    return [Fact(given.dtype(0), result), Fact(ir.DataType.INT64, result)]


@shape_rule("Compress")
def compress(given: NodeFacts) -> Fact:
    """How many elements are kept depends on the condition; without ``axis`` the result is flat."""
    if given.attr("axis") is None:
        return Fact(given.dtype(0), (given.fresh(),))
    shape = given.shape(0)
    if shape is None:
        return Fact(given.dtype(0))
    axis = given.axis(len(shape), 0)
    most = bounds(shape[axis])[1]
    return Fact(given.dtype(0), (*shape[:axis], given.fresh(hi=most), *shape[axis + 1 :]))
