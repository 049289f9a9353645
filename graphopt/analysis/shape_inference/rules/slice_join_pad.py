"""Operators that slice, join, repeat and pad tensors along their axes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np

from graphopt import ir
from graphopt.analysis.shape_inference.node_facts import (
    NodeFacts,
    known_length,
    normalize_axis,
    shape_rule,
)
from graphopt.analysis.shape_inference.rules.layout import as_array
from graphopt.analysis.shape_inference.value_facts import Fact, ShapeTuple, tracks_contents
from graphopt.analysis.symbolic import (
    Dim,
    bounds,
    ceildiv,
    dim_max,
    dim_min,
    floordiv,
    known_nonzero,
    zero_with,
)

_TO_THE_END = (1 << 31) - 1  # exporters write INT32_MAX or INT64_MAX; no dim exceeds the former


@shape_rule("Slice")
def slice_(node: NodeFacts) -> Fact:
    """Starts, ends, axes and steps are attributes before opset 10, and inputs from opset 10 on."""
    shape = node.shape(0)
    if shape is None:
        return Fact(node.dtype(0))
    starts: Sequence[Dim | None]
    ends: Sequence[Dim | None]
    steps: Sequence[Dim | None]
    if node.version < 10:
        starts, ends, axes = (
            node.attr_ints("starts") or (),
            node.attr_ints("ends") or (),
            node.attr_ints("axes"),
        )
        steps = (1,) * len(starts)
        given_axes = axes is not None
    else:
        count = known_length(node.shape(1)) or known_length(node.shape(2)) or len(shape)
        unknown = (None,) * count
        starts = node.named_contents(1) or unknown
        ends = node.named_contents(2) or unknown
        axes, given_axes = node.static_contents(3), node.has(3)
        steps = (node.contents(4) or unknown) if node.has(4) else (1,) * count
    if not given_axes:
        axes = tuple(range(len(starts)))
    if axes is None:
        return Fact(node.dtype(0), tuple(node.fresh(hi=bounds(dim)[1]) for dim in shape))
    dims = list(shape)
    cuts: list[tuple[int, Dim, int]] = []
    for index, axis in enumerate(axes):
        axis = normalize_axis(axis, len(shape))
        cut = _slice_extent(shape[axis], starts[index], ends[index], steps[index])
        if cut is None:
            dims[axis] = node.fresh(hi=bounds(shape[axis])[1])
        else:
            first, dims[axis], step = cut
            cuts.append((axis, first, step))
    result = Fact(node.dtype(0), tuple(dims))
    contents = node.contents(0)
    if contents is not None and len(cuts) == len(axes):
        array = as_array(contents, shape)
        for axis, first, step in cuts:
            length = dims[axis]
            if not isinstance(first, int) or not isinstance(length, int):
                return result
            array = array.take([first + step * i for i in range(length)], axis)
        result.contents = tuple(array.reshape(-1).tolist())
    return result


def _slice_extent(
    size: Dim, start: Dim | None, end: Dim | None, step: Dim | None
) -> tuple[Dim, Dim, int] | None:
    """First index, length and step of a slice; ``None`` if a sign is unknown (ONNX: Slice)."""
    if start is None or end is None or not isinstance(step, int) or step == 0:
        return None
    if step < 0 and isinstance(end, int) and end >= _TO_THE_END:
        return None  # empty by the specification, but onnxruntime continues to the front
    first, last = _from_front(size, start), _from_front(size, end)
    if first is None or last is None:
        return None
    if step > 0:
        first, last = _clamp(first, 0, size), _clamp(last, 0, size)
    else:
        first, last = _clamp(first, 0, size - 1), _clamp(last, -1, size - 1)
    return first, dim_max(ceildiv(last - first, step), 0), step


def _from_front(size: Dim, index: Dim) -> Dim | None:
    """``index``, counted from the front of an axis of ``size``; ``None`` if its sign is unknown."""
    if isinstance(index, int):
        if index >= _TO_THE_END:
            return size
        return index if index >= 0 else size + index
    lo, hi = bounds(index)
    if lo >= 0:
        return index
    return size + index if hi < 0 else None


def _clamp(index: Dim, lo: Dim, hi: Dim) -> Dim:
    """``index`` clamped to ``[lo, hi]``; ``hi`` if the range is empty."""
    return dim_min(dim_max(index, lo), hi)


@shape_rule("Split")
def split(node: NodeFacts) -> list[Fact]:
    """The sizes are an attribute, from opset 13 on an input; without them, all parts have equal sizes.

    With ``num_outputs`` (opset 18), the last part is the remainder.
    """
    shape = node.shape(0)
    dtype = node.dtype(0)
    parts = len(node.ir.outputs)
    if shape is None:
        return [Fact(dtype)] * parts
    axis = node.axis(len(shape), 0)
    size = shape[axis]
    sizes: Sequence[Dim] | None
    if node.version < 13:
        sizes, given_sizes = node.attr_ints("split"), node.attr("split") is not None
    else:
        sizes, given_sizes = node.named_contents(1), node.has(1)
    if not given_sizes:
        if node.version >= 18:
            parts = node.attr_int("num_outputs", parts)
            chunk = ceildiv(size, parts)
            sizes = [chunk] * (parts - 1) + [size - chunk * (parts - 1)]
        else:
            sizes = [floordiv(size, parts)] * parts
    elif sizes is None:
        sizes = [node.fresh(hi=bounds(size)[1]) for _ in range(parts)]
    facts = [Fact(dtype, (*shape[:axis], part, *shape[axis + 1 :])) for part in sizes]
    contents = node.contents(0)
    static = ir.all_ints(sizes)
    if contents is not None and static is not None:
        array = as_array(contents, shape)
        for fact, piece in zip(facts, np.split(array, np.cumsum(static)[:-1], axis), strict=True):
            fact.contents = tuple(piece.reshape(-1).tolist())
    return facts


@shape_rule("Concat")
def concat(node: NodeFacts) -> Fact:
    """The dims add up along ``axis`` and agree elsewhere."""
    shapes = [fact.shape for fact in node.facts]
    dtype = next((fact.dtype for fact in node.facts if fact.dtype is not None), None)
    known = [shape for shape in shapes if shape is not None]
    if not known:
        return Fact(dtype)
    rank = len(known[0])
    axis = node.axis(rank, 1)  # opset 1 has a default axis
    if len(known) < len(shapes):
        return Fact(dtype, node.fresh_shape(rank))
    result = Fact(dtype, concatenated(node, known, axis))
    if tracks_contents(dtype, result.shape):
        inputs = [node.named_contents(index) for index in range(len(known))]
        if None not in inputs:
            if rank == 1:
                result.contents = tuple(chain.from_iterable(part for part in inputs if part is not None))
            else:
                arrays = [as_array(part or (), shape) for part, shape in zip(inputs, known, strict=True)]
                result.contents = tuple(np.concatenate(arrays, axis).reshape(-1).tolist())
    return result


def concatenated(node: NodeFacts, shapes: Sequence[ShapeTuple], axis: int) -> ShapeTuple:
    """The shape of ``shapes`` joined along ``axis``."""
    total: Dim = 0
    for shape in shapes:
        total = total + shape[axis]
    places = range(len(shapes[0]))
    return tuple(total if place == axis else _unjoined_dim(node, shapes, place) for place in places)


def _unjoined_dim(node: NodeFacts, shapes: Sequence[ShapeTuple], place: int) -> Dim:
    """The size of a dim that is not concatenated.

    onnxruntime requires equal sizes of nonempty inputs only. Therefore the size is known from an input that
    is never empty, and from the first input if the others are empty whenever the first input is empty.
    """
    first = shapes[0][place]
    for shape in shapes:
        if shape[place] != first:
            break
    else:
        return first
    for index, shape in enumerate(shapes):
        if all(map(known_nonzero, shape)) or (index == 0 and _all_empty_with(shape, shapes[1:])):
            return shape[place]
    return node.fresh()


def _all_empty_with(shape: ShapeTuple, others: Sequence[ShapeTuple]) -> bool:
    """Whether tensors of shapes ``others`` are empty whenever a tensor of ``shape`` is empty."""
    return all(any(zero_with(size, dim) for size in other) for dim in shape for other in others)


@shape_rule("Tile")
def tile(node: NodeFacts) -> Fact | None:
    """Each dim times its repeats."""
    if node.version < 6:
        return None
    shape = node.shape(0)
    repeats = node.named_contents(1)
    if shape is None:
        length = known_length(node.shape(1))
        return Fact(node.dtype(0), None if length is None else node.fresh_shape(length))
    if repeats is None:
        return Fact(node.dtype(0), node.fresh_shape(len(shape)))
    dims = tuple(dim * times for dim, times in zip(shape, repeats, strict=True))
    result = Fact(node.dtype(0), dims)
    contents, static = node.contents(0), ir.all_ints(repeats)
    if contents is not None and static is not None and tracks_contents(result.dtype, dims):
        result.contents = tuple(np.tile(as_array(contents, shape), static).reshape(-1).tolist())
    return result


@shape_rule("Expand")
def expand(node: NodeFacts) -> Fact:
    """The input broadcast against the shape in the second input."""
    shape = node.shape(0)
    target = node.named_contents(1)
    if target is None:
        length = known_length(node.shape(1))
        if shape is None or length is None:
            return Fact(node.dtype(0))
        target = node.fresh_shape(length)
    if shape is None:
        return Fact(node.dtype(0))
    dims = node.broadcast([shape, target])
    result = Fact(node.dtype(0), dims)
    contents = node.contents(0)
    if contents is not None and dims is not None and tracks_contents(result.dtype, dims):
        array = np.broadcast_to(as_array(contents, shape), ir.all_ints(dims) or ())
        result.contents = tuple(array.reshape(-1).tolist())
    return result


@shape_rule("Pad")
def pad(node: NodeFacts) -> Fact:
    """Each dim plus the pads before and after; negative pads crop."""
    shape = node.shape(0)
    dtype = node.dtype(0)
    if shape is None:
        return Fact(dtype)
    pads: Sequence[Dim] | None
    axes: Sequence[int] | None = range(len(shape))
    if node.version < 11:
        pads = node.attr_ints("pads" if node.version >= 2 else "paddings")
    else:
        pads = node.named_contents(1)
        if node.has(3):
            axes = node.static_contents(3)
    if pads is None or axes is None:
        return Fact(dtype, node.fresh_shape(len(shape)))
    dims = list(shape)
    for index, axis in enumerate(axes):
        axis = normalize_axis(axis, len(shape))
        dims[axis] = dims[axis] + pads[index] + pads[index + len(axes)]
    return Fact(dtype, tuple(dims))
