"""Reductions, softmax and normalizations."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from graphopt.fusion.loop_nest import ONLY, Index
from graphopt.fusion.loops.builder import Expr, IRBuilder
from graphopt.fusion.loops.ir import CantFuse
from graphopt.fusion.operator_table import (
    FLOATS,
    NUMBERS,
    EmitContext,
    IndexingMaps,
    Operands,
    Operator,
    broadcast_index,
    operator,
)

_WIDE = FLOATS | {"INT32", "INT64"}


def _reduce(ctx: EmitContext) -> Operands:
    """Reduce…: the axes are an attribute, or an input since opset 18 (ReduceSum: 13)."""
    value = ctx.required_input(0)
    dims = ctx.nest.dims(value)
    given = ctx.ints(1, "axes")
    if not given and ctx.attribute("noop_with_empty_axes", 0):
        raise CantFuse("a reduction has no axes")
    axes = sorted(ctx.axis(axis, len(dims)) for axis in given) if given else list(range(len(dims)))
    if len(dict.fromkeys(axes)) != len(axes):
        raise CantFuse("an axis is reduced twice")
    kept = [axis for axis in range(len(dims)) if axis not in axes]
    indices = [ONLY] * len(dims)
    if ctx.attribute("keepdims", 1):
        for axis in kept:
            indices[axis] = ctx.indices[axis]
    else:
        for position, axis in enumerate(kept):
            indices[axis] = ctx.indices[position]
    loops = ctx.nest.reduce_over([dims[axis] for axis in axes], ctx.indices)
    for axis in axes:
        if dims[axis] != 1:
            indices[axis] = Index(loops.pop(0))
    return [(value, ctx.nest.resolved(tuple(indices))), *([None] * (len(ctx.node.inputs) - 1))]


def _reduction_maps(
    axes: Callable[[EmitContext, int], Sequence[int]], like: Callable[[EmitContext, int, int], Sequence[int]]
) -> IndexingMaps:
    """Indexing maps of an operator that reduces its first input and has a result of the same shape.

    Args:
        axes: the reduction axes, from the node and the rank.
        like: for input ``k``, the axes of the first input to which its axes correspond.
    """

    def indexing_maps(ctx: EmitContext) -> Operands:
        value = ctx.required_input(0)
        dims = ctx.nest.dims(value)
        reduced = list(axes(ctx, len(dims)))
        if ctx.output != 0 or len(ctx.indices) != len(dims):
            raise CantFuse("a further output of a reduction is used")
        if not all(ctx.nest.covers(ctx.indices[axis], dims[axis]) for axis in reduced):
            raise CantFuse("a reduced axis is sliced")
        kept = tuple(index for axis, index in enumerate(ctx.indices) if axis not in reduced)
        inside = [loop for axis in reduced for loop in ctx.indices[axis].loops]
        sizes = [ctx.nest.sizes[loop] for loop in ctx.nest.delinearize(inside)]
        ctx.nest.reduce_over(sizes, kept)
        if ctx.nest.delinearize(inside) != tuple(ctx.nest.reduction_loops or ()):
            raise CantFuse("a reduction is in another order than its neighbours")
        indices = ctx.nest.resolved(ctx.indices)
        found: Operands = [(value, indices)]
        for number, other in enumerate(ctx.node.inputs[1:], start=1):
            if other is None:
                found.append(None)
                continue
            theirs = like(ctx, number, len(dims))
            if len(theirs) != len(ctx.nest.dims(other)):
                raise CantFuse(f"{other.name!r} has another rank than the reduced axes")
            shape, index = [dims[axis] for axis in theirs], tuple(indices[axis] for axis in theirs)
            found.append((other, broadcast_index(ctx.nest, ctx.nest.dims(other), shape, index)))
        return found

    return indexing_maps


def _from_axis(ctx: EmitContext, rank: int) -> Sequence[int]:
    return range(ctx.axis(ctx.attribute("axis", -1), rank), rank)


def _softmax_axes(ctx: EmitContext, rank: int) -> Sequence[int]:
    """One axis since opset 13; earlier, all axes from ``axis`` on."""
    axis = ctx.axis(ctx.attribute("axis", -1 if ctx.version >= 13 else 1), rank)
    return [axis] if ctx.version >= 13 else range(axis, rank)


def _spatial(ctx: EmitContext, rank: int) -> Sequence[int]:
    return range(2, rank)


def _like_trailing(ctx: EmitContext, number: int, rank: int) -> Sequence[int]:
    other = ctx.required_input(number)
    own = len(ctx.nest.dims(other))
    return range(rank - own, rank)


def _like_channels(ctx: EmitContext, number: int, rank: int) -> Sequence[int]:
    return [1]


def _reduction(op: str, types: frozenset[str], compute: Callable[[IRBuilder, Expr], Expr]) -> Operator:
    """A reduction; its axes are an attribute or an input."""
    declare = operator(op, indexing_maps=_reduce, types=types, data=1, reduces=True)
    return declare(lambda b, ctx, x, axes=None: compute(b, x))


reduce_sum = _reduction("ReduceSum", _WIDE, lambda b, x: b.reduce("sum", x))
reduce_mean = _reduction("ReduceMean", FLOATS, lambda b, x: b.mean(x))
reduce_max = _reduction("ReduceMax", NUMBERS, lambda b, x: b.reduce("max", x))
reduce_min = _reduction("ReduceMin", NUMBERS, lambda b, x: b.reduce("min", x))
reduce_prod = _reduction("ReduceProd", _WIDE, lambda b, x: b.reduce("prod", x))
reduce_sum_square = _reduction("ReduceSumSquare", _WIDE, lambda b, x: b.reduce("sum", x * x))
reduce_l1 = _reduction("ReduceL1", _WIDE, lambda b, x: b.reduce("sum", b.op("abs", x)))
reduce_l2 = _reduction("ReduceL2", FLOATS, lambda b, x: b.op("sqrt", b.reduce("sum", x * x)))


@operator("Softmax", indexing_maps=_reduction_maps(_softmax_axes, _like_trailing), reduces=True)
def softmax(b: IRBuilder, ctx: EmitContext, x: Expr) -> Expr:
    """eˣ / Σ eˣ, computed from x − max x."""
    powers = b.op("exp", x - b.reduce("max", x))
    return powers / b.reduce("sum", powers)


@operator("LogSoftmax", indexing_maps=_reduction_maps(_softmax_axes, _like_trailing), reduces=True)
def log_softmax(b: IRBuilder, ctx: EmitContext, x: Expr) -> Expr:
    """log(softmax(x))."""
    shifted = x - b.reduce("max", x)
    return shifted - b.op("log", b.reduce("sum", b.op("exp", shifted)))


def _standardized(b: IRBuilder, x: Expr, epsilon: float) -> Expr:
    centred = x - b.mean(x)
    return centred * (1.0 / b.op("sqrt", b.mean(centred * centred) + epsilon))


def _scaled(x: Expr, scale: Expr | None, bias: Expr | None) -> Expr:
    x = x if scale is None else x * scale
    return x if bias is None else x + bias


@operator("LayerNormalization", indexing_maps=_reduction_maps(_from_axis, _like_trailing), reduces=True)
def layer_normalization(
    b: IRBuilder, ctx: EmitContext, x: Expr, scale: Expr | None, bias: Expr | None = None
) -> Expr:
    """(x − mean) / √(variance + ε) · scale + bias, over the trailing axes."""
    return _scaled(_standardized(b, x, ctx.attribute("epsilon", 1e-5)), scale, bias)


@operator("InstanceNormalization", indexing_maps=_reduction_maps(_spatial, _like_channels), reduces=True)
def instance_normalization(b: IRBuilder, ctx: EmitContext, x: Expr, scale: Expr, bias: Expr) -> Expr:
    """(x − mean) / √(variance + ε) · scale + bias, over the spatial axes."""
    return _scaled(_standardized(b, x, ctx.attribute("epsilon", 1e-5)), scale, bias)


@operator("RMSNormalization", indexing_maps=_reduction_maps(_from_axis, _like_trailing), reduces=True)
def rms_normalization(b: IRBuilder, ctx: EmitContext, x: Expr, scale: Expr | None) -> Expr:
    """x / √(mean(x²) + ε) · scale, over the trailing axes."""
    root = b.op("sqrt", b.mean(x * x) + ctx.attribute("epsilon", 1e-5))
    return _scaled(x * (1.0 / root), scale, None)
