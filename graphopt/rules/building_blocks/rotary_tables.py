"""Tables of cosines and sines for rotary embedding, with each number once or twice."""

from __future__ import annotations

import numpy as np

from graphopt import ir
from graphopt.ops import traits
from graphopt.rewrite import Builder, Match
from graphopt.rules.building_blocks.axes import axis_of, perm_of, squeeze, unsqueeze
from graphopt.rules.building_blocks.operands import producer_of
from graphopt.rules.building_blocks.reshape_targets import reshape
from graphopt.rules.building_blocks.shape_equality import same_shape
from graphopt.rules.building_blocks.slices_and_pads import INT64_MAX, Range, slice_

#: Maximum length of the chain of nodes followed from a table to the node that doubles its numbers.
_FAR = 16
#: Operators on one tensor and perhaps scalars, which keep equal elements equal.
_KEEPS = traits.UNARY_ELEMENTWISE | {"Mul", "Div", "Add", "Sub", "Cast"}

#: Operators that, if the size of the last axis is unchanged, keep this axis or reverse it.
_VIEWS = ("Expand", "Reshape", "Slice", "Squeeze", "Unsqueeze")


def is_doubled(m: Match, value: ir.Value, *, pairs: bool) -> bool:
    """Whether each number along the last axis occurs twice: in adjacent ``pairs``, or half an axis apart."""
    current: ir.Value | None = value
    for _ in range(_FAR):
        if current is None:
            return False
        array = m.constant(current)
        if array is not None:
            return _has_equal_halves(array, pairs=pairs)
        node = producer_of(current)
        if node is None:
            return False
        if _is_doubling(m, node, pairs=pairs):
            return True
        current = _same_last_axis(m, node)
    return False


def _has_equal_halves(array: np.ndarray, *, pairs: bool) -> bool:
    if array.ndim == 0:
        return False
    half = array.shape[-1] // 2
    first, second = (array[..., ::2], array[..., 1::2]) if pairs else (array[..., :half], array[..., half:])
    return np.array_equal(first, second)


def _is_doubling(m: Match, node: ir.Node, *, pairs: bool) -> bool:
    """Whether ``node`` writes each number twice."""
    rank = m.rank(node.outputs[0])
    if node.op_type == "Concat" and not pairs:
        last = rank is not None and axis_of(m, node, rank) == rank - 1
        return last and len(node.inputs) == 2 and node.inputs[0] is node.inputs[1]
    if node.op_type == "Gather" and rank is not None and node.inputs[0] is not None:
        source = m.rank(node.inputs[0])
        index = m.constant(node.inputs[1])
        last = source is not None and axis_of(m, node, source) == source - 1
        return last and index is not None and _has_equal_halves(index, pairs=pairs)
    return pairs and node.op_type == "Reshape" and _joins_pairs(m, node)


def _joins_pairs(m: Match, view: ir.Node) -> bool:
    """Whether the Reshape ``view`` flattens an axis of pairs of equal numbers."""
    before = m.shape(view.inputs[0])
    if not before or before[-1] != 2:
        return False
    joined = producer_of(view.inputs[0], "Concat")
    if joined is not None:
        last = axis_of(m, joined, len(before)) == len(before) - 1
        return last and joined.inputs[0] is joined.inputs[1]
    repeated = producer_of(view.inputs[0], "Expand", "Tile")
    single = None if repeated is None or repeated.inputs[0] is None else m.shape(repeated.inputs[0])
    return bool(single and single[-1] == 1)


def _same_last_axis(m: Match, node: ir.Node) -> ir.Value | None:
    """The operand whose last axis ``node`` keeps, up to elementwise operations."""
    source = node.inputs[0] if node.inputs else None
    before, after = m.shape(source), m.shape(node.outputs[0])
    if node.op_type in _KEEPS:
        others = [x for x in node.inputs if ir.scalar_of(x) is None]
        return others[0] if len(others) == 1 else None
    if source is None or before is None or after is None or not before or not after:
        return None
    if not m.cx.facts.dim_equal(before[-1], after[-1]):
        return None
    if node.op_type in _VIEWS:
        return source
    if node.op_type == "Transpose":
        perm = perm_of(m, node)
        return source if perm is not None and perm[-1] == len(perm) - 1 else None
    if node.op_type == "Gather":
        return source if axis_of(m, node, len(before)) != len(before) - 1 else None
    return None


def tables_of(
    op: Builder, m: Match, tables: tuple[ir.Value, ir.Value], *, doubled: str | None, positions: int | None
) -> list[ir.Value]:
    """Cosines and sines without repetition: [rows, half], or [batches, positions, half].

    Args:
        tables: two tables of one shape, [batches, …, half or all], of rank 4 at most, with 1 head.
        doubled: the repetition of numbers: ``halves``, ``pairs``, or ``None`` without repetition.
        positions: the axis of positions among four, 1 or 2; ``None`` to flatten all axes but the last.
    """
    shape = m.shape(tables[0])
    assert shape is not None and isinstance(shape[-1], int)
    half = shape[-1] // (2 if doubled else 1)
    full = (1,) * (4 - len(shape)) + shape
    angles = _shared_angles(m, tables) if doubled == "halves" else None
    if angles is not None:
        functions, found = angles
        if positions is None:
            found = reshape(op, m, found, [-1, half])
        if positions is None or same_shape(m, m.shape(found), (full[0], full[positions], half)):
            return [op.node(function, [found]) for function in functions]
    last = len(shape) - 1
    once = Range(last, 0, half) if doubled == "halves" else Range(last, 0, INT64_MAX, 2)
    parts = [table if doubled is None else slice_(op, m, table, [once]) for table in tables]
    return [
        reshape(op, m, part, [-1, half])
        if positions is None
        else _drop_axis(op, m, part, len(shape), 3 - positions)
        for part in parts
    ]


def _drop_axis(op: Builder, m: Match, table: ir.Value, rank: int, axis: int) -> ir.Value:
    """``table`` with three axes: its four axes (the first may be missing) without ``axis``."""
    missing = 4 - rank
    if axis < missing:
        return unsqueeze(op, m, table, range(missing - 1))
    whole = squeeze(op, m, table, [axis - missing])
    return unsqueeze(op, m, whole, range(missing))


def _shared_angles(m: Match, tables: tuple[ir.Value, ir.Value]) -> tuple[list[str], ir.Value] | None:
    """(operator of each table, angles) if both tables are Cos or Sin of the same angles (:func:`_angles`)."""
    known = [_angles(m, table) for table in tables]
    found = [one for one in known if one is not None]
    if len(found) != len(known) or found[0][1] is not found[1][1]:
        return None
    return [function for function, _ in found], found[0][1]


def _angles(m: Match, value: ir.Value) -> tuple[str, ir.Value] | None:
    """(Cos or Sin, angles) if ``value`` is Cos or Sin of the angles written twice, or an Unsqueeze of it."""
    while (view := producer_of(value, "Unsqueeze")) is not None and view.inputs[0] is not None:
        value = view.inputs[0]
    function = producer_of(value, "Cos", "Sin")
    twice = None if function is None else producer_of(function.inputs[0], "Concat")
    if function is None or twice is None or not _is_doubling(m, twice, pairs=False):
        return None
    assert twice.inputs[0] is not None
    return function.op_type, twice.inputs[0]
