"""Concat and Split."""

from __future__ import annotations

from graphopt import ir
from graphopt.rewrite import Builder, Exact, Match, Outcome, rule
from graphopt.rules.building_blocks.axes import axis_of
from graphopt.rules.building_blocks.operands import producer_of
from graphopt.rules.building_blocks.slices_and_pads import INT32_MAX, Range, slice_, slice_ranges
from graphopt.util.lazy_dataclass import dataclass


@rule(
    lambda op, xs: op.Concat(xs.rest()),
    numerics=Exact,
    proven_exact=True,
    producers=("Concat",),
    tags=("onnxoptimizer:fuse_consecutive_concats",),
)
def flatten_concats(op: Builder, m: Match, xs: tuple[ir.Value, ...]) -> Outcome:
    """Concat(Concat(x, y), z) → Concat(x, y, z), along one axis.

    The match starts at the last node of a chain, so one rewrite replaces the whole chain.
    """
    result = m.root.outputs[0]
    axis = axis_of(m, m.root, m.rank(result))
    if axis is None:
        return m.no("rank unknown", result)
    reader = ir.only_reader(result)
    if reader is not None and _is_part(m, result, reader, axis):
        return m.no("its reader, a Concat, takes over its operands", result)
    flat: list[ir.Value] = []
    pending = list(reversed(xs))
    while pending:
        x = pending.pop()
        inner = producer_of(x, "Concat", graph=m.graph)
        if inner is not None and _is_part(m, x, m.root, axis):
            pending.extend(value for value in reversed(inner.inputs) if value is not None)
        else:
            flat.append(x)
    return (
        m.no("no operand is a Concat along this axis without other readers")
        if len(flat) == len(xs)
        else op.like(m.root, flat)
    )


def _is_part(m: Match, part: ir.Value, whole: ir.Node, axis: int) -> bool:
    """Whether ``part`` and its only reader, ``whole``, are Concats along ``axis`` in one graph."""
    node = part.producer()
    return (
        node is not None
        and whole.op_type == node.op_type == "Concat"
        and whole.domain == node.domain == ""
        and whole.graph is node.graph
        and m.only_use(part)
        and axis_of(m, node, m.rank(part)) == axis
        and axis_of(m, whole, m.rank(whole.outputs[0])) == axis
    )


@rule(lambda op, xs: op.Concat(xs.rest()), numerics=Exact, proven_exact=True, producers=("Split",))
def concat_of_split(op: Builder, m: Match, xs: tuple[ir.Value, ...]) -> Outcome:
    """Concat(*Split(x)) → x, with all parts in order and the same axis."""
    split = producer_of(xs[0], "Split", graph=m.graph)
    if split is None:
        return m.no("the first operand is not an output of a Split", xs[0])
    whole, parts = split.inputs[0], split.outputs
    assert whole is not None
    if len(parts) > len(xs) or any(part is not x for part, x in zip(parts, xs, strict=False)):
        return m.no("the operands are not all its outputs in order", xs[0])
    axis = axis_of(m, m.root, m.rank(m.root.outputs[0]))
    if axis is None or axis_of(m, split, m.rank(whole)) != axis:
        return m.no("it splits along another axis", xs[0])
    rest = xs[len(parts) :]
    return op.like(m.root, [whole, *rest]) if rest else whole


@rule(lambda op, xs: op.Concat(xs.rest()), numerics=Exact, proven_exact=True, producers=("Slice",))
def join_slices(op: Builder, m: Match, xs: tuple[ir.Value, ...]) -> Outcome:
    """Concat(x[a:b], x[b:c]) → x[a:c], or x if the range is the whole axis."""
    axis = axis_of(m, m.root, m.rank(m.root.outputs[0]))
    if axis is None:
        return m.no("rank unknown", m.root.outputs[0])
    pieces: list[_Piece] = []
    for x in xs:
        piece = _Piece(x, *(_slice_along(m, x, axis) or (None, None)))
        if pieces and pieces[-1].reaches(piece):
            pieces[-1] = pieces[-1].joined(piece)
        else:
            pieces.append(piece)
    if len(pieces) == len(xs):
        return m.no("no two neighbours are adjacent Slices")
    joined = [piece.write(op, m) for piece in pieces]
    return joined[0] if len(joined) == 1 else op.like(m.root, joined)


@dataclass(frozen=True)
class _Piece:
    """One operand of a Concat, ``value``, or several joined into the range ``selected`` of ``data``."""

    value: ir.Value | None
    data: ir.Value | None
    selected: Range | None

    def reaches(self, other: _Piece) -> bool:
        """Whether ``other`` begins at the end of this range, even after clamping to any size of the axis."""
        a, b = self.selected, other.selected
        if a is None or b is None or self.data is not other.data or a.end != b.start:
            return False
        return (a.start == 0 and b.end >= INT32_MAX) or 0 <= a.start <= a.end <= b.end

    def joined(self, other: _Piece) -> _Piece:
        assert self.selected is not None and other.selected is not None
        return _Piece(None, self.data, Range(self.selected.axis, self.selected.start, other.selected.end))

    def write(self, op: Builder, m: Match) -> ir.Value:
        """The operand itself, all of the data, or one Slice of it."""
        if self.value is not None:
            return self.value
        assert self.data is not None and self.selected is not None
        shape = m.shape(self.data)
        assert shape is not None
        end, size = self.selected.end, shape[self.selected.axis]
        if self.selected.start == 0 and (end >= INT32_MAX or size == end):
            return self.data
        return slice_(op, m, self.data, [self.selected])


def _slice_along(m: Match, x: ir.Value, axis: int) -> tuple[ir.Value, Range] | None:
    """The data and the range, with nonnegative bounds, if ``x`` is a Slice along ``axis`` only."""
    node = producer_of(x, "Slice", graph=m.graph)
    if node is None or not m.only_use(x):
        return None
    data, ranges = node.inputs[0], slice_ranges(m, node)
    shape = m.shape(data)
    if data is None or ranges is None or shape is None or len(ranges) != 1:
        return None
    selected = ranges[0]
    if selected.axis != axis or selected.step != 1:
        return None
    size = shape[axis]
    if isinstance(size, int):
        exact = selected.of(size)
        return data, Range(axis, exact.start, max(exact.start, exact.stop))
    return data, selected


@rule(
    lambda op, xs, rest: op.Split(op.Concat(xs.rest(), tag="concat"), rest.rest()),
    numerics=Exact,
    proven_exact=True,
)
def split_of_concat(op: Builder, m: Match, xs: tuple[ir.Value, ...]) -> Outcome:
    """Split(Concat(*xs)) → xs, if both have the same axis and sizes."""
    concat = m.node("concat").outputs[0]
    axis, rank = axis_of(m, m.root, m.rank(concat)), m.rank(concat)
    if axis is None or axis_of(m, m.node("concat"), rank) != axis or len(xs) != len(m.root.outputs):
        return m.no("it splits along another axis, or into another number of parts", concat)
    if not all(_same_size(m, x, part, axis) for x, part in zip(xs, m.root.outputs, strict=True)):
        return m.no("it splits at other positions", concat)
    returned = [(part, x) for part, x in zip(m.root.outputs, xs, strict=True) if part.is_graph_output()]
    replaceable = {x for part, x in returned if m.cx.edit.can_replace(part, x)}
    if len(returned) - len(replaceable) > 1:  # one Identity may replace the Split
        return m.no("several outputs of the graph would need an Identity", concat)
    return tuple(xs)


def _same_size(m: Match, x: ir.Value, part: ir.Value, axis: int) -> bool:
    a, b = m.shape(x), m.shape(part)
    return a is not None and b is not None and m.cx.facts.dim_equal(a[axis], b[axis])
