"""Reductions, softmax and norms: what goes over a row."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from graphopt import ir
from graphopt.fusion.loop_nest import ONLY, CantFuse, Index, Map
from graphopt.fusion.loops.builder import Body, Term
from graphopt.fusion.operator_table import FLOATS, NUMBERS, At, Reads, operator, spread

_WIDE = FLOATS | {"INT32", "INT64"}


def _reduced(at: At) -> list[tuple[ir.Value, Map] | None]:
    """Reduce…: the axes are an attribute, or an input since opset 18 (13 of ReduceSum)."""
    value = at.needed(0)
    dims = at.nest.dims(value)
    given = at.ints(1, "axes")
    if not given and at.attribute("noop_with_empty_axes", 0):
        raise CantFuse("it reduces over no axes")
    axes = sorted(at.axis(axis, len(dims)) for axis in given) if given else list(range(len(dims)))
    if len(dict.fromkeys(axes)) != len(axes):
        raise CantFuse("it reduces over an axis twice")
    kept = [axis for axis in range(len(dims)) if axis not in axes]
    index = [ONLY] * len(dims)
    if at.attribute("keepdims", 1):
        for axis in kept:
            index[axis] = at.map[axis]
    else:
        for place, axis in enumerate(kept):
            index[axis] = at.map[place]
    loops = at.nest.reduce_over([dims[axis] for axis in axes], at.map)
    for axis in axes:
        if dims[axis] != 1:
            index[axis] = Index(loops.pop(0))
    return [(value, at.nest.resolved(tuple(index))), *([None] * (len(at.node.inputs) - 1))]


def _along(axes: Callable[[At, int], Sequence[int]], like: Callable[[At, int, int], Sequence[int]]) -> Reads:
    """Of an operator that goes over a row of its first input, and computes all of its elements.

    Args:
        axes: the axes of the row, from the node and the rank.
        like: for input ``k``, the axes of the first input that its axes are those of.
    """

    def reads(at: At) -> list[tuple[ir.Value, Map] | None]:
        value = at.needed(0)
        dims = at.nest.dims(value)
        row = list(axes(at, len(dims)))
        if at.output != 0 or len(at.map) != len(dims):
            raise CantFuse("what it computes besides is wanted")
        if not all(at.nest.covers(at.map[axis], dims[axis]) for axis in row):
            raise CantFuse("a row is sliced")
        kept = tuple(index for axis, index in enumerate(at.map) if axis not in row)
        inside = [loop for axis in row for loop in at.map[axis].loops]
        sizes = [at.nest.sizes[loop] for loop in at.nest.digits(inside)]
        at.nest.reduce_over(sizes, kept)
        if at.nest.digits(inside) != tuple(at.nest.row or ()):
            raise CantFuse("it goes over a row in another order than its neighbours")
        index = at.nest.resolved(at.map)
        found: list[tuple[ir.Value, Map] | None] = [(value, index)]
        for place, other in enumerate(at.node.inputs[1:], start=1):
            if other is None:
                found.append(None)
                continue
            theirs = like(at, place, len(dims))
            if len(theirs) != len(at.nest.dims(other)):
                raise CantFuse(f"{other.name!r} is of another shape than a row")
            shape, where = [dims[axis] for axis in theirs], tuple(index[axis] for axis in theirs)
            found.append((other, spread(at.nest, at.nest.dims(other), shape, where)))
        return found

    return reads


def _from_axis(at: At, rank: int) -> Sequence[int]:
    return range(at.axis(at.attribute("axis", -1), rank), rank)


def _softmax_axes(at: At, rank: int) -> Sequence[int]:
    """One axis since opset 13, before that all from the axis on."""
    axis = at.axis(at.attribute("axis", -1 if at.version >= 13 else 1), rank)
    return [axis] if at.version >= 13 else range(axis, rank)


def _spatial(at: At, rank: int) -> Sequence[int]:
    return range(2, rank)


def _like_trailing(at: At, place: int, rank: int) -> Sequence[int]:
    other = at.needed(place)
    own = len(at.nest.dims(other))
    return range(rank - own, rank)


def _like_channels(at: At, place: int, rank: int) -> Sequence[int]:
    return [1]


@operator("ReduceSum", reads=_reduced, types=_WIDE, data=1, reduces=True)
def reduce_sum(b: Body, at: At, x: Term, axes: Term | None = None) -> Term:
    """The sum."""
    return b.reduce("sum", x)


@operator("ReduceMean", reads=_reduced, types=FLOATS, data=1, reduces=True)
def reduce_mean(b: Body, at: At, x: Term, axes: Term | None = None) -> Term:
    """The mean."""
    return b.mean(x)


@operator("ReduceMax", reads=_reduced, types=NUMBERS, data=1, reduces=True)
def reduce_max(b: Body, at: At, x: Term, axes: Term | None = None) -> Term:
    """The largest."""
    return b.reduce("max", x)


@operator("ReduceMin", reads=_reduced, types=NUMBERS, data=1, reduces=True)
def reduce_min(b: Body, at: At, x: Term, axes: Term | None = None) -> Term:
    """The smallest."""
    return b.reduce("min", x)


@operator("ReduceProd", reads=_reduced, types=_WIDE, data=1, reduces=True)
def reduce_prod(b: Body, at: At, x: Term, axes: Term | None = None) -> Term:
    """The product."""
    return b.reduce("prod", x)


@operator("ReduceSumSquare", reads=_reduced, types=_WIDE, data=1, reduces=True)
def reduce_sum_square(b: Body, at: At, x: Term, axes: Term | None = None) -> Term:
    """The sum of squares."""
    return b.reduce("sum", x * x)


@operator("ReduceL1", reads=_reduced, types=_WIDE, data=1, reduces=True)
def reduce_l1(b: Body, at: At, x: Term, axes: Term | None = None) -> Term:
    """The sum of magnitudes."""
    return b.reduce("sum", b.op("abs", x))


@operator("ReduceL2", reads=_reduced, types=FLOATS, data=1, reduces=True)
def reduce_l2(b: Body, at: At, x: Term, axes: Term | None = None) -> Term:
    """The root of the sum of squares."""
    return b.op("sqrt", b.reduce("sum", x * x))


@operator("Softmax", reads=_along(_softmax_axes, _like_trailing), reduces=True)
def softmax(b: Body, at: At, x: Term) -> Term:
    """eˣ over its sum."""
    powers = b.op("exp", x - b.reduce("max", x))
    return powers / b.reduce("sum", powers)


@operator("LogSoftmax", reads=_along(_softmax_axes, _like_trailing), reduces=True)
def log_softmax(b: Body, at: At, x: Term) -> Term:
    """The logarithm of softmax."""
    shifted = x - b.reduce("max", x)
    return shifted - b.op("log", b.reduce("sum", b.op("exp", shifted)))


def _standardized(b: Body, x: Term, epsilon: float) -> Term:
    centred = x - b.mean(x)
    return centred * (1.0 / b.op("sqrt", b.mean(centred * centred) + epsilon))


def _scaled(x: Term, scale: Term | None, bias: Term | None) -> Term:
    x = x if scale is None else x * scale
    return x if bias is None else x + bias


@operator("LayerNormalization", reads=_along(_from_axis, _like_trailing), reduces=True)
def layer_normalization(b: Body, at: At, x: Term, scale: Term | None, bias: Term | None = None) -> Term:
    """(x − mean) / √(variance + ε) · scale + bias, over the trailing axes."""
    return _scaled(_standardized(b, x, at.attribute("epsilon", 1e-5)), scale, bias)


@operator("InstanceNormalization", reads=_along(_spatial, _like_channels), reduces=True)
def instance_normalization(b: Body, at: At, x: Term, scale: Term, bias: Term) -> Term:
    """The same over the axes of space, by channel."""
    return _scaled(_standardized(b, x, at.attribute("epsilon", 1e-5)), scale, bias)


@operator("RMSNormalization", reads=_along(_from_axis, _like_trailing), reduces=True)
def rms_normalization(b: Body, at: At, x: Term, scale: Term | None) -> Term:
    """x / √(mean of x² + ε) · scale, over the trailing axes."""
    root = b.op("sqrt", b.mean(x * x) + at.attribute("epsilon", 1e-5))
    return _scaled(x * (1.0 / root), scale, None)
