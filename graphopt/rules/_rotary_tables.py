"""Tables of cosines and sines for rotary embedding: which numbers come twice, and how to take each once."""

from __future__ import annotations

import numpy as np

from graphopt import ir
from graphopt.ops import facts
from graphopt.rewrite import Match
from graphopt.rewrite.builder import Builder
from graphopt.rules import _forms as forms

#: Nodes that are followed from a table to where its numbers are doubled.
_FAR = 16
#: Operators of one tensor, perhaps with numbers beside it, that leave equal numbers equal.
_KEEPS = facts.UNARY_ELEMENTWISE | {"Mul", "Div", "Add", "Sub", "Cast"}


def comes_twice(m: Match, value: ir.Value, *, pairs: bool) -> bool:
    """Whether each number along the last axis comes twice: side by side in ``pairs``, else half apart."""
    current: ir.Value | None = value
    for _ in range(_FAR):
        if current is None:
            return False
        array = m.constant(current)
        if array is not None:
            return _is_doubled(array, pairs=pairs)
        node = current.producer()
        if node is None or node.domain:
            return False
        if _doubles(m, node, pairs=pairs):
            return True
        current = _kept(m, node)
    return False


def _is_doubled(array: np.ndarray, *, pairs: bool) -> bool:
    if array.ndim == 0 or array.shape[-1] % 2:
        return False
    half = array.shape[-1] // 2
    first, second = (array[..., ::2], array[..., 1::2]) if pairs else (array[..., :half], array[..., half:])
    return np.array_equal(first, second)


def _doubles(m: Match, node: ir.Node, *, pairs: bool) -> bool:
    """Whether ``node`` writes each number twice."""
    rank = m.rank(node.outputs[0])
    if node.op_type == "Concat" and not pairs:
        last = rank is not None and forms.axis_of(m, node, rank) == rank - 1
        return last and len(node.inputs) == 2 and node.inputs[0] is node.inputs[1]
    if node.op_type == "Gather" and rank is not None and node.inputs[0] is not None:
        source = m.rank(node.inputs[0])
        index = m.constant(node.inputs[1])
        last = source is not None and forms.axis_of(m, node, source) == source - 1
        return last and index is not None and index.ndim == 1 and _is_doubled(index, pairs=pairs)
    if node.op_type != "Reshape" or not pairs or node.inputs[0] is None:
        return False
    before, after = m.shape(node.inputs[0]), m.shape(node.outputs[0])
    inner = node.inputs[0].producer()
    if before is None or after is None or inner is None or len(before) < 2 or before[-1] != 2:
        return False
    joined = isinstance(before[-2], int) and after[-1] == 2 * before[-2]
    if inner.op_type == "Concat":
        return joined and len(inner.inputs) == 2 and inner.inputs[0] is inner.inputs[1]
    single = None if inner.inputs[0] is None else m.shape(inner.inputs[0])
    return joined and inner.op_type == "Expand" and single is not None and single[-1] == 1


def _kept(m: Match, node: ir.Node) -> ir.Value | None:
    """The operand whose last axis ``node`` leaves as it is, but for what is done to all numbers alike."""
    source = node.inputs[0] if node.inputs else None
    before, after = None if source is None else m.shape(source), m.shape(node.outputs[0])
    if node.op_type in _KEEPS:
        others = [x for x in node.inputs if ir.scalar_of(x) is None]
        return others[0] if len(others) == 1 else None
    if source is None or before is None or after is None or not before or not after:
        return None
    if not m.cx.facts.dim_equal(before[-1], after[-1]):
        return None
    if node.op_type in ("Unsqueeze", "Squeeze"):
        axes = forms.axes_of(m, node)
        rank = max(len(before), len(after))
        return source if axes is not None and rank - 1 not in axes else None
    if node.op_type in ("Reshape", "Expand"):
        return source
    if node.op_type == "Transpose":
        perm = forms.perm_of(m, node)
        return source if perm is not None and perm[-1] == len(perm) - 1 else None
    if node.op_type == "Gather":
        return source if forms.axis_of(m, node, len(before)) != len(before) - 1 else None
    if node.op_type == "Slice":
        axes = forms.ints_of(m, node, 3, "axes", None)
        return (
            source
            if axes is not None and all(axis % len(before) != len(before) - 1 for axis in axes)
            else None
        )
    return None


def tables_of(
    op: Builder,
    m: Match,
    tables: tuple[ir.Value, ir.Value],
    *,
    doubled: str | None,
    axes: tuple[int, ...] | None,
) -> list[ir.Value]:
    """Cosines and sines, each once: [rows, half], or with no axes but those of batches, positions and angles.

    Args:
        tables: both of one shape.
        doubled: how numbers come twice: ``halves``, ``pairs``, or ``None`` if each comes once.
        axes: of size 1, to be left out; ``None`` if all but the last are to be rows.
    """
    shape = m.shape(tables[0])
    assert shape is not None and isinstance(shape[-1], int)
    half = shape[-1] // (2 if doubled else 1)

    def formed(value: ir.Value, rank: int) -> ir.Value:
        if axes is None:
            return forms.reshape(op, m, value, [-1, half])
        # angles have no axis of heads yet
        return forms.squeeze(op, m, value, axes) if rank == len(shape) else value

    known = [_angles(m, table) if doubled == "halves" else None for table in tables]
    if known[0] is not None and known[1] is not None and known[0][1] is known[1][1]:
        angles = known[0][1]
        rank = m.rank(angles)
        if axes is None or rank == 3:
            found = formed(angles, 3)
            return [op.node(one[0], [found]) for one in known if one is not None]
    last = len(shape) - 1
    taken = forms.Range(last, 0, half) if doubled == "halves" else forms.Range(last, 0, forms.INT64_MAX, 2)
    parts = [table if doubled is None else forms.slice_(op, m, table, [taken]) for table in tables]
    return [formed(part, len(shape)) for part in parts if part is not None]


def _angles(m: Match, value: ir.Value) -> tuple[str, ir.Value] | None:
    """(Cos or Sin, angles) if ``value`` is a view of that of angles, written twice in a row."""
    node = value.producer()
    while node is not None and node.op_type == "Unsqueeze" and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    if node is None or node.domain or node.op_type not in ("Cos", "Sin") or node.inputs[0] is None:
        return None
    twice = node.inputs[0].producer()
    if twice is None or twice.domain or not _doubles(m, twice, pairs=False) or twice.op_type != "Concat":
        return None
    assert twice.inputs[0] is not None
    return node.op_type, twice.inputs[0]
