"""Data movement and casts: in a loop nest, they change an index and compute nothing."""

from __future__ import annotations

from collections.abc import Sequence

from graphopt import ir
from graphopt.analysis.symbolic import Dim, product
from graphopt.context import Context
from graphopt.fusion.loop_nest import ONLY, AffineMap, Index
from graphopt.fusion.loops.builder import Expr, IRBuilder
from graphopt.fusion.loops.ir import CantFuse
from graphopt.fusion.operator_table import ANY, EmitContext, Operands, broadcast_input, element_of, operator


def _first(b: IRBuilder, ctx: EmitContext, x: Expr, *others: Expr | None) -> Expr:
    return x


def _only(ctx: EmitContext, value: ir.Value, indices: AffineMap) -> Operands:
    """Read the first input only."""
    return [(value, indices), *([None] * (len(ctx.node.inputs) - 1))]


def _reshape(ctx: EmitContext) -> Operands:
    """Reshape keeps the row-major order of elements."""
    value, nest = ctx.required_input(0), ctx.nest
    dims, shape, indices = nest.dims(value), ctx.shape, ctx.indices
    front = 0
    while front < min(len(dims), len(shape)) and nest.facts.dim_equal(dims[front], shape[front]):
        front += 1
    back = 0
    while back < min(len(dims), len(shape)) - front and nest.facts.dim_equal(
        dims[-1 - back], shape[-1 - back]
    ):
        back += 1
    middle = indices[front : len(shape) - back]
    sizes, targets = shape[front : len(shape) - back], dims[front : len(dims) - back]
    if all(map(nest.covers, nest.resolved(middle), sizes)):
        loops = [loop for index in middle for loop in index.loops]
        between = tuple(map(Index, nest.group_loops(loops, targets)))
    elif len(targets) == 1:
        between = (_linearized(ctx, middle, sizes),)
    else:
        raise CantFuse("a slice is reshaped")
    found = (*indices[:front], *between, *indices[len(shape) - back :])
    return _only(ctx, value, nest.resolved(found))


def _linearized(ctx: EmitContext, indices: AffineMap, sizes: Sequence[Dim]) -> Index:
    """The index along one axis that results from flattening axes of ``sizes``."""
    offset = 0
    loops: tuple[int, ...] = ()
    radix: Dim = 1
    for index, size in zip(indices[::-1], sizes[::-1], strict=True):
        if index.step != 1 or not isinstance(radix, int):
            raise CantFuse("a slice is reshaped")
        if not ctx.nest.facts.dim_equal(product(ctx.nest.sizes[loop] for loop in index.loops), size):
            raise CantFuse("a slice is reshaped")
        loops = (*index.loops, *loops)
        offset += index.offset * radix
        radix = radix * size
    return Index(loops, offset)


def _transpose(ctx: EmitContext) -> Operands:
    order = ctx.attribute("perm") or range(len(ctx.indices))[::-1]
    found = [ONLY] * len(ctx.indices)
    for position, axis in enumerate(order):
        found[axis] = ctx.indices[position]
    return _only(ctx, ctx.required_input(0), tuple(found))


def _expand(ctx: EmitContext) -> Operands:
    value = ctx.required_input(0)
    return _only(ctx, value, broadcast_input(ctx, value))


def _start(ctx: EmitContext, axis: int, start: int, step: int) -> int:
    """The nonnegative start of a slice, valid for all sizes."""
    size = ctx.dims(0)[axis]
    if isinstance(size, int):
        start = start + size if start < 0 else start
        return max(0, min(start, size - 1 if step < 0 else size))
    if start < 0 or step < 0:
        raise CantFuse("a slice counts from the end of an axis of dynamic size")
    return start


def _slice(ctx: EmitContext) -> Operands:
    starts, steps = ctx.ints(1, "starts") or (), ctx.ints(4, "steps")
    axes = ctx.ints(3, "axes") or range(len(starts))
    found = list(ctx.indices)
    for position, axis in enumerate(axes):
        axis = ctx.axis(axis, len(found))
        step = 1 if steps is None else steps[position]
        start = _start(ctx, axis, starts[position], step)
        if found[axis].loops or start:
            found[axis] = found[axis].sliced(start, step)
    return _only(ctx, ctx.required_input(0), tuple(found))


def _split(ctx: EmitContext) -> Operands:
    """One output of Split."""
    axis = ctx.axis(ctx.attribute("axis", 0), len(ctx.indices))
    start = 0
    for output in ctx.node.outputs[: ctx.output]:
        size = ctx.nest.dims(output)[axis]
        if not isinstance(size, int):
            raise CantFuse("a Split has parts of dynamic size")
        start += size
    found = list(ctx.indices)
    found[axis] = found[axis].sliced(start, 1)
    return _only(ctx, ctx.required_input(0), tuple(found))


def _gather(ctx: EmitContext) -> Operands:
    """Gather with one constant index."""
    picked = ctx.cx.static_ints(ctx.required_input(1))
    rank = ctx.cx.rank(ctx.required_input(1))
    if picked is None or len(picked) != 1 or rank is None:
        raise CantFuse("the index of a Gather is not one constant number")
    value = ctx.required_input(0)
    dims = ctx.nest.dims(value)
    axis = ctx.axis(ctx.attribute("axis", 0), len(dims))
    position, size = picked[0], dims[axis]
    if not isinstance(size, int):
        raise CantFuse("a Gather reads an axis of dynamic size")
    position += size if position < 0 else 0
    if not 0 <= position < size:
        raise CantFuse("the index of a Gather is out of range")
    return _only(ctx, value, (*ctx.indices[:axis], Index((), position), *ctx.indices[axis + rank :]))


def _concat(ctx: EmitContext) -> Operands:
    """Concat: each input is read in one segment of the loop along the axis."""
    axis = ctx.axis(ctx.attribute("axis"), len(ctx.indices))
    along = ctx.indices[axis]
    if not ctx.nest.covers(along, ctx.shape[axis]) or len(along.loops) != 1:
        raise CantFuse("a concatenation is sliced or reshaped")
    found: Operands = []
    start = 0
    points = []
    for value in ctx.node.inputs:
        if value is None:  # onnxruntime accepts omitted inputs
            raise CantFuse("an input of a Concat is omitted")
        indices = list(ctx.indices)
        indices[axis] = Index(along.loops, -start)
        found.append((value, tuple(indices)))
        size = ctx.nest.dims(value)[axis]
        if not isinstance(size, int):
            raise CantFuse("a Concat has parts of dynamic size")
        start += size
        points.append(start)
    ctx.nest.split_at(along.loops[0], points[:-1])
    return found


reshape = operator(
    "Reshape", "Flatten", "Unsqueeze", "Squeeze", indexing_maps=_reshape, types=ANY, data=1, moves=True
)(_first)
transpose = operator("Transpose", indexing_maps=_transpose, types=ANY, moves=True)(_first)
expand = operator("Expand", indexing_maps=_expand, types=ANY, data=1, moves=True)(_first)
identity = operator("Identity", types=ANY, moves=True)(_first)
slice_ = operator("Slice", indexing_maps=_slice, types=ANY, data=1, moves=True)(_first)
split = operator("Split", indexing_maps=_split, types=ANY, data=1, moves=True)(
    lambda b, ctx, x, *others: [x] * len(ctx.node.outputs)
)
gather = operator("Gather", indexing_maps=_gather, types=ANY, data=1, moves=True)(_first)


@operator("Concat", indexing_maps=_concat, types=ANY, moves=True)
def concat(b: IRBuilder, ctx: EmitContext, *parts: Expr | None) -> Expr:
    """The input whose segment contains the element; the other inputs are not read in that segment."""
    (found,) = [part for part in parts if part is not None]
    return found


def _unsupported_type(node: ir.Node, cx: Context) -> str | None:
    return None if element_of(cx.dtype(node.outputs[0])) else "no kernels for the type that it casts to"


@operator(
    "Cast",
    "CastLike",
    types=ANY,
    refuses=_unsupported_type,
    indexing_maps=lambda ctx: _only(ctx, ctx.required_input(0), ctx.indices),
)
def cast(b: IRBuilder, ctx: EmitContext, x: Expr, like: Expr | None = None) -> Expr:
    """x, converted to the element type of the output."""
    return b.cast(x, ctx.element())
