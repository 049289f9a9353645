"""Sequences that are taken apart again: the tensors themselves do."""

from __future__ import annotations

from itertools import accumulate, pairwise

import numpy as np

from graphopt import ir
from graphopt.rewrite import Exact, Match, Outcome, rule
from graphopt.rewrite.builder import Builder
from graphopt.rules import _forms as forms


@rule(
    lambda op, xs: op.ConcatFromSequence(op.SequenceConstruct(xs.rest()), new_axis=0),
    numerics=Exact,
    tags=("onnxscript:concat-from-sequence",),
)
def concat_of_constructed_sequence(op: Builder, m: Match, xs: tuple[ir.Value, ...]) -> Outcome:
    """The Concat of a sequence of tensors that are at hand is a Concat of these tensors."""
    return op.Concat(*xs, axis=m.attribute(m.root, "axis"))


@rule(
    lambda op, xs, i: op.SequenceAt(op.SequenceConstruct(xs.rest()), i),
    numerics=Exact,
    tags=("onnxscript:sequence-at",),
)
def element_of_constructed_sequence(op: Builder, m: Match, xs: tuple[ir.Value, ...], i: ir.Value) -> Outcome:
    """An element of a sequence of tensors that are at hand is that tensor."""
    index = ir.scalar_of(i)
    if index is None or not -len(xs) <= index < len(xs):
        return m.no("the index is unknown or out of range", i)
    return xs[int(index)]


@rule(
    lambda op, xs: op.SequenceLength(op.SequenceConstruct(xs.rest())),
    numerics=Exact,
)
def length_of_constructed_sequence(op: Builder, m: Match, xs: tuple[ir.Value, ...]) -> Outcome:
    """The length of a sequence of tensors that are at hand is a number."""
    return op.constant(np.array(len(xs), np.int64))


@rule(
    lambda op, x, s, i: op.SequenceAt(op.SplitToSequence(x, s.optional(), tag="split"), i),
    numerics=Exact,
    tags=("onnxscript:split-to-sequence",),
)
def element_of_split_sequence(op: Builder, m: Match, x: ir.Value, s: ir.Value | None, i: ir.Value) -> Outcome:
    """An element of a tensor split into a sequence is a Slice of it, or a Gather without the axis."""
    split, shape, index = m.node("split"), m.shape(x), ir.scalar_of(i)
    axis = forms.axis_of(m, split, m.rank(x))
    if axis is None or shape is None or not isinstance(shape[axis], int) or index is None:
        return m.no("the size of the axis or the index is unknown", x)
    sizes = _sizes(m, s, shape[axis])
    if sizes is None or sum(sizes) != shape[axis] or not -len(sizes) <= index < len(sizes):
        return m.no("the parts are unknown, or the index is out of range", s)
    start, end = list(pairwise(accumulate(sizes, initial=0)))[int(index)]
    if s is None and m.attribute(split, "keepdims") == 0:
        return op.Gather(x, np.array(start, np.int64), axis=axis)
    part = forms.slice_(op, m, x, [forms.Range(axis, start, end)])
    return m.no("no such Slice", x) if part is None else part


def _sizes(m: Match, split: ir.Value | None, total: int) -> tuple[int, ...] | None:
    """The sizes of the parts: given one by one, as one size for all but the last, or 1 each."""
    told = (1,) if split is None else m.ints(split)
    if not told:
        return None
    if split is not None and m.rank(split) == 1:
        return told
    if told[0] < 1:
        return None
    rest = total % told[0]
    return (told[0],) * (total // told[0]) + ((rest,) if rest else ())
