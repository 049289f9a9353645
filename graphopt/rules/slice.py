"""Slice."""

from __future__ import annotations

from graphopt import ir
from graphopt.analysis import symbolic
from graphopt.rewrite import Builder, Exact, Match, Outcome, rule
from graphopt.rules.building_blocks.axes import axis_of
from graphopt.rules.building_blocks.slices_and_pads import INT64_MAX, Range, range_from, slice_, slice_ranges


@rule(
    lambda op, x, a, b: op.Slice(op.Slice(x, a.rest(), tag="inner"), b.rest()),
    numerics=Exact,
    proven_exact=True,
    tags=("onnxslim:slice-chain", "onnxoptimizer:fuse_consecutive_slices", "onnxscript:collapse-slice"),
)
def collapse_slices(op: Builder, m: Match, x: ir.Value) -> Outcome:
    """Slice(Slice(x)) → Slice(x)."""
    inner, outer = slice_ranges(m, m.node("inner")), slice_ranges(m, m.root)
    if inner is None or outer is None:
        return m.no("the bounds are not constant")
    shape = m.shape(x)
    assert shape is not None
    ranges = {selected.axis: selected for selected in inner}
    for selected in outer:
        first = ranges.get(selected.axis)
        both = selected if first is None else _compose(first, selected, shape[selected.axis])
        if both is None:
            return m.no(f"the ranges along axis {selected.axis} do not combine into one", x)
        ranges[selected.axis] = both
    return slice_(op, m, x, [ranges[axis] for axis in sorted(ranges)])


def _compose(first: Range, second: Range, size: symbolic.Dim) -> Range | None:
    """The range equivalent to ``first`` and then ``second`` on an axis of ``size``."""
    if isinstance(size, int):
        selected = first.of(size)
        within = second.of(len(selected))
        if not within:
            return Range(first.axis, 0, 0)
        step = selected.step * within.step
        last = selected[within[-1]]
        return range_from(first.axis, range(selected[within[0]], last + (1 if step > 0 else -1), step))
    if first.step != 1 or second.step < 1 or min(first.start, first.end, second.start, second.end) < 0:
        return None
    end = min(first.end, first.start + second.end, INT64_MAX)
    return Range(first.axis, min(first.start + second.start, INT64_MAX), end, second.step)


@rule(lambda op, xs, rest: op.Slice(op.Concat(xs.rest()), rest.rest()), numerics=Exact, proven_exact=True)
def slice_of_concat(op: Builder, m: Match, xs: tuple[ir.Value, ...]) -> Outcome:
    """Slice(Concat(*xs)) → xs[k], if it selects exactly one operand."""
    concat = m.root.inputs[0]
    assert concat is not None
    producer = concat.producer()
    assert producer is not None
    axis, ranges = axis_of(m, producer, m.rank(concat)), slice_ranges(m, m.root)
    shape = m.shape(concat)
    if axis is None or ranges is None or shape is None:
        return m.no("axis or bounds unknown", concat)
    if len(ranges) != 1 or ranges[0].axis != axis or ranges[0].step != 1:
        return m.no("it does not select a range of the concatenated axis")
    start, end = _end(ranges[0].start, shape[axis]), _end(ranges[0].end, shape[axis])
    at: symbolic.Dim = 0
    for x in xs:
        part = m.shape(x)
        if part is None:
            return m.no("the rank of an operand is unknown", x)
        if m.cx.facts.dim_equal(at, start) and m.cx.facts.dim_equal(at + part[axis], end):
            return x
        at = at + part[axis]
    return m.no("it does not select exactly one operand", concat)


def _end(bound: int, size: symbolic.Dim) -> symbolic.Dim:
    """``bound`` as an index: counted from the end of the axis if negative, otherwise at most ``size``."""
    if bound < 0:
        return size + bound
    return symbolic.dim_min(bound, size)
