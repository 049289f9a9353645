"""Operators that only move elements, or take them for another type: no work in a nest, but another index."""

from __future__ import annotations

from collections.abc import Sequence

from graphopt import ir
from graphopt.analysis.symbolic import Dim, product
from graphopt.context import Context
from graphopt.fusion.loop_nest import ONLY, CantFuse, Index, Map
from graphopt.fusion.loops.builder import Body, Term
from graphopt.fusion.operator_table import ANY, At, broadcast, element_of, operator


def _first(b: Body, at: At, x: Term, *others: Term | None) -> Term:
    return x


def _only(at: At, value: ir.Value, index: Map) -> list[tuple[ir.Value, Map] | None]:
    """The first input is read, and no element of the others."""
    return [(value, index), *([None] * (len(at.node.inputs) - 1))]


def _reshaped(at: At) -> list[tuple[ir.Value, Map] | None]:
    """In row-major order, elements stay where they are."""
    value, nest = at.needed(0), at.nest
    dims, shape, index = nest.dims(value), at.shape, at.map
    front = 0
    while front < min(len(dims), len(shape)) and nest.facts.dim_equal(dims[front], shape[front]):
        front += 1
    back = 0
    while back < min(len(dims), len(shape)) - front and nest.facts.dim_equal(
        dims[-1 - back], shape[-1 - back]
    ):
        back += 1
    middle = index[front : len(shape) - back]
    sizes, wanted = shape[front : len(shape) - back], dims[front : len(dims) - back]
    if all(map(nest.covers, nest.resolved(middle), sizes)):
        loops = [loop for where in middle for loop in where.loops]
        between = tuple(map(Index, nest.regrouped(loops, wanted)))
    elif len(wanted) == 1:
        between = (_merged(at, middle, sizes),)
    else:
        raise CantFuse("what is sliced is reshaped")
    found = (*index[:front], *between, *index[len(shape) - back :])
    return _only(at, value, nest.resolved(found))


def _merged(at: At, indices: Map, sizes: Sequence[Dim]) -> Index:
    """The place along one axis that several axes of ``sizes`` are made of."""
    offset = 0
    loops: tuple[int, ...] = ()
    radix: Dim = 1
    for index, size in zip(indices[::-1], sizes[::-1], strict=True):
        if index.step != 1 or not isinstance(radix, int):
            raise CantFuse("what is sliced is reshaped")
        if at.nest.facts.dim_equal(product(at.nest.sizes[loop] for loop in index.loops), size):
            loops = (*index.loops, *loops)
        else:
            raise CantFuse("what is sliced is reshaped")
        offset += index.offset * radix
        radix = radix * size
    return Index(loops, offset)


def _transposed(at: At) -> list[tuple[ir.Value, Map] | None]:
    order = at.attribute("perm") or range(len(at.map))[::-1]
    found = [ONLY] * len(at.map)
    for place, axis in enumerate(order):
        found[axis] = at.map[place]
    return _only(at, at.needed(0), tuple(found))


def _expanded(at: At) -> list[tuple[ir.Value, Map] | None]:
    value = at.needed(0)
    return _only(at, value, broadcast(at, value))


def _start(at: At, axis: int, start: int, step: int) -> int:
    """Where a slice begins, counted from the front, for all sizes."""
    size = at.dims(0)[axis]
    if isinstance(size, int):
        start = start + size if start < 0 else start
        return max(0, min(start, size - 1 if step < 0 else size))
    if start < 0 or step < 0:
        raise CantFuse("a slice counts from the end of a size that is known only when the model runs")
    return start


def _sliced(at: At) -> list[tuple[ir.Value, Map] | None]:
    starts, steps = at.ints(1, "starts"), at.ints(4, "steps")
    axes = at.ints(3, "axes") or range(len(starts or ()))
    found = list(at.map)
    for place, axis in enumerate(axes):
        axis = at.axis(axis, len(found))
        step = 1 if steps is None else steps[place]
        assert starts is not None
        start = _start(at, axis, starts[place], step)
        if found[axis].loops or start:
            found[axis] = found[axis].sliced(start, step)
    return _only(at, at.needed(0), tuple(found))


def _part(at: At) -> list[tuple[ir.Value, Map] | None]:
    """One output of Split."""
    axis = at.axis(at.attribute("axis", 0), len(at.map))
    start = 0
    for output in at.node.outputs[: at.output]:
        size = at.nest.dims(output)[axis]
        if not isinstance(size, int):
            raise CantFuse("the sizes of a Split are known only when the model runs")
        start += size
    found = list(at.map)
    found[axis] = found[axis].sliced(start, 1)
    return _only(at, at.needed(0), tuple(found))


def _picked(at: At) -> list[tuple[ir.Value, Map] | None]:
    """Gather of one constant index."""
    picked = at.cx.static_ints(at.needed(1))
    rank = at.cx.rank(at.needed(1))
    if picked is None or len(picked) != 1 or rank is None:
        raise CantFuse("which elements it gathers is not one constant")
    value = at.needed(0)
    dims = at.nest.dims(value)
    axis = at.axis(at.attribute("axis", 0), len(dims))
    place, size = picked[0], dims[axis]
    if isinstance(size, int):
        place += size if place < 0 else 0
        if not 0 <= place < size:
            raise CantFuse("it gathers what is not there")
    else:
        raise CantFuse("it gathers from a size that is known only when the model runs")
    return _only(at, value, (*at.map[:axis], Index((), place), *at.map[axis + rank :]))


def _joined(at: At) -> list[tuple[ir.Value, Map] | None]:
    """Concat: each input in a piece of the loop along its axis."""
    axis = at.axis(at.attribute("axis"), len(at.map))
    where = at.map[axis]
    if not at.nest.covers(where, at.shape[axis]) or len(where.loops) != 1:
        raise CantFuse("what is concatenated is sliced or reshaped")
    found: list[tuple[ir.Value, Map] | None] = []
    start = 0
    points = []
    for value in at.node.inputs:
        if value is None:  # onnxruntime takes that
            raise CantFuse("an input of it is left out")
        index = list(at.map)
        index[axis] = Index(where.loops, -start)
        found.append((value, tuple(index)))
        size = at.nest.dims(value)[axis]
        if not isinstance(size, int):
            raise CantFuse("where one part of a Concat ends is known only when the model runs")
        start += size
        points.append(start)
    at.nest.cut_at(where.loops[0], points[:-1])
    return found


reshape = operator(
    "Reshape", "Flatten", "Unsqueeze", "Squeeze", reads=_reshaped, types=ANY, data=1, moves=True
)(_first)
transpose = operator("Transpose", reads=_transposed, types=ANY, moves=True)(_first)
expand = operator("Expand", reads=_expanded, types=ANY, data=1, moves=True)(_first)
identity = operator("Identity", types=ANY, moves=True)(_first)
cut_out = operator("Slice", reads=_sliced, types=ANY, data=1, moves=True)(_first)
split = operator("Split", reads=_part, types=ANY, data=1, moves=True)(
    lambda b, at, x, *others: [x] * len(at.node.outputs)
)
gather = operator("Gather", reads=_picked, types=ANY, data=1, moves=True)(_first)


@operator("Concat", reads=_joined, types=ANY, moves=True)
def concat(b: Body, at: At, *parts: Term | None) -> Term:
    """That input in whose piece the element lies: the others are not read there."""
    (found,) = [part for part in parts if part is not None]
    return found


def _known_types(node: ir.Node, cx: Context) -> str | None:
    return None if element_of(cx.dtype(node.outputs[0])) else "kernels do not know the type that it casts to"


@operator(
    "Cast", "CastLike", types=ANY, accepts=_known_types, reads=lambda at: _only(at, at.needed(0), at.map)
)
def cast(b: Body, at: At, x: Term, like: Term | None = None) -> Term:
    """The value as another type."""
    return b.cast(x, at.element())
