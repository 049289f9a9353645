"""Sequences that are constructed and read in the model are replaced by their tensors."""

from __future__ import annotations

from itertools import accumulate, pairwise

import numpy as np

from graphopt import ir
from graphopt.context import Dim
from graphopt.rewrite import Builder, Exact, Match, Outcome, rule
from graphopt.rules.building_blocks.axes import axis_of
from graphopt.rules.building_blocks.operands import operand
from graphopt.rules.building_blocks.slices_and_pads import Range, slice_

#: Maximum number of outputs of a new Split.
_MOST_PARTS = 64


@rule(
    lambda op, xs: op.ConcatFromSequence(op.SequenceConstruct(xs.rest()), new_axis=0),
    numerics=Exact,
    tags=("onnxscript:fold-concat-from-sequence",),
)
def concat_of_constructed_sequence(op: Builder, m: Match, xs: tuple[ir.Value, ...]) -> Outcome:
    """ConcatFromSequence([x, y]) → Concat(x, y)."""
    axis = axis_of(m, m.root, m.rank(xs[0]))
    if any(_differ(m.shape(xs[0]), m.shape(x), axis) for x in xs):
        return m.no("their shapes differ, which Concat rejects even for empty tensors", xs[0])
    return op.Concat(*xs, axis=m.attribute(m.root, "axis"))


def _differ(a: tuple[Dim, ...] | None, b: tuple[Dim, ...] | None, axis: int | None) -> bool:
    """Whether two shapes are known to differ in an axis other than ``axis``, or in rank."""
    if a is None or b is None:
        return False
    return len(a) != len(b) or any(
        isinstance(x, int) and isinstance(y, int) and x != y
        for at, (x, y) in enumerate(zip(a, b, strict=True))
        if at != axis
    )


@rule(
    lambda op, xs, i: op.SequenceAt(op.SequenceConstruct(xs.rest()), i),
    numerics=Exact,
    tags=("onnxscript:fold-sequence-at",),
)
def element_of_constructed_sequence(op: Builder, m: Match, xs: tuple[ir.Value, ...], i: ir.Value) -> Outcome:
    """SequenceAt([x, y], 1) → y."""
    index = ir.scalar_of(i)
    if index is None or not -len(xs) <= index < len(xs):
        return m.no("the index is unknown or out of range", i)
    return xs[int(index)]


@rule(
    lambda op, xs: op.SequenceLength(op.SequenceConstruct(xs.rest())),
    lambda op: op.SequenceLength(op.SequenceEmpty()),
    numerics=Exact,
)
def length_of_constructed_sequence(op: Builder, m: Match, xs: tuple[ir.Value, ...] | None) -> Outcome:
    """SequenceLength([x, y]) → 2."""
    return op.constant(np.array(len(xs or ()), np.int64))


@rule(
    lambda op, x, s, i: op.SequenceAt(op.SplitToSequence(x, s.optional(), tag="split"), i),
    numerics=Exact,
    tags=("onnxscript:fold-split-to-sequence",),
)
def element_of_split_sequence(op: Builder, m: Match, x: ir.Value, s: ir.Value | None, i: ir.Value) -> Outcome:
    """SequenceAt(SplitToSequence(x), i) → Slice(x), or Gather(x) without the axis."""
    split, index = m.node("split"), ir.scalar_of(i)
    axis, sizes = split_of(m, split)
    if axis is None or sizes is None:
        return m.no("the size of the axis or of the parts is unknown", x)
    if index is None or not -len(sizes) <= index < len(sizes):
        return m.no("the index is unknown or out of range", i)
    start, end = list(pairwise(accumulate(sizes, initial=0)))[int(index)]
    if s is None and m.attribute(split, "keepdims") == 0:
        return op.Gather(x, np.array(start, np.int64), axis=axis)
    return slice_(op, m, x, [Range(axis, start, end)])


@rule(
    lambda op, x, s, i: op.SequenceAt(op.SplitToSequence(x, s, tag="split"), i),
    numerics=Exact,
    tags=("onnxscript:fold-split-to-sequence",),
)
def element_of_computed_split(op: Builder, m: Match, x: ir.Value, s: ir.Value, i: ir.Value) -> Outcome:
    """SequenceAt(SplitToSequence(x, sizes), i) → Split(x, sizes)[i], if only constant positions are read."""
    split, index = m.node("split"), ir.scalar_of(i)
    lengths, axis = m.shape(s), m.attribute(split, "axis")
    count = lengths[0] if lengths is not None and len(lengths) == 1 else None
    if m.version < 13 or not isinstance(count, int) or not 0 < count <= _MOST_PARTS or m.ints(s) is not None:
        return m.no("the number of parts is unknown, all sizes are known, or Split has no input for sizes", s)
    for reader in ir.readers(split.outputs[0]):
        position = (
            ir.scalar_of(reader.inputs[1]) if reader.op_type == "SequenceAt" and not reader.domain else None
        )
        if position is None or not -count <= position < count or reader.graph is not split.graph:
            return m.no(
                "the sequence has other readers, or an index is unknown or out of range",
                split.outputs[0],
                shared=True,
            )
    assert index is not None
    parts = op.Split(x, s, axis=axis, outputs=count)
    return parts[int(index)] if count > 1 else parts


@rule(lambda op, x, s: op.SequenceLength(op.SplitToSequence(x, s.optional(), tag="split")), numerics=Exact)
def length_of_split_sequence(op: Builder, m: Match, s: ir.Value | None) -> Outcome:
    """SequenceLength(SplitToSequence(x)) → the number of parts."""
    _, sizes = split_of(m, m.node("split"))
    return m.no("the parts are unknown", s) if sizes is None else op.constant(np.array(len(sizes), np.int64))


def split_of(m: Match, split: ir.Node) -> tuple[int, tuple[int, ...]] | tuple[None, None]:
    """The axis of a SplitToSequence and the sizes of its parts, if they are known to fit."""
    data = split.inputs[0]
    shape = m.shape(data)
    axis = None if shape is None else axis_of(m, split, len(shape))
    size = None if shape is None or axis is None else shape[axis]
    if axis is None or not isinstance(size, int):
        return None, None
    sizes = _sizes(m, operand(split, 1), size)
    return (None, None) if sizes is None or sum(sizes) != size else (axis, sizes)


def _sizes(m: Match, split: ir.Value | None, total: int) -> tuple[int, ...] | None:
    """The sizes of the parts: listed, or one size for all but the last part, or 1 each."""
    sizes = (1,) if split is None else m.ints(split)
    if not sizes:
        return None
    if split is not None and m.rank(split) == 1:
        return sizes
    size = sizes[0]
    if size < 1:
        return None
    rest = total % size
    return (size,) * (total // size) + ((rest,) if rest else ())
