"""Axes of operators, as attributes or inputs depending on the opset version."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from graphopt import ir
from graphopt.analysis import symbolic
from graphopt.analysis.symbolic import Dim
from graphopt.rewrite import Builder, Match
from graphopt.rules.building_blocks.operands import int_of, ints_of, operand

#: The opset version from which the axes are an input.
_AXES_INPUT = {"Squeeze": 13, "Unsqueeze": 13, "ReduceSum": 13}
_REDUCE_AXES_INPUT = 18


def normalized(axis: int, rank: int) -> int | None:
    """``axis`` counted from the front, or ``None`` if there is no such axis."""
    return axis % rank if -rank <= axis < rank else None


def all_normalized(axes: Iterable[int], rank: int) -> tuple[int, ...] | None:
    """``axes`` counted from the front, in the given order; ``None`` if one does not exist or is repeated."""
    found = [normalized(axis, rank) for axis in axes]
    known = [axis for axis in found if axis is not None]
    return tuple(known) if len(set(known)) == len(found) else None


def axis_of(m: Match, node: ir.Node, rank: int | None, default: int = 0) -> int | None:
    """Attribute ``axis`` counted from the front."""
    axis = int_of(m, node, "axis", default)
    return None if rank is None else normalized(axis, rank)


def perm_of(m: Match, node: ir.Node) -> tuple[int, ...] | None:
    """The permutation of a Transpose, by default the reversal."""
    perm = node.attributes.get("perm")
    if perm is not None:
        if perm.is_ref() or sorted(perm.value) != list(range(len(perm.value))):
            return None
        return tuple(perm.value)
    rank = m.rank(node.inputs[0])
    return None if rank is None else tuple(reversed(range(rank)))


def axes_of(m: Match, node: ir.Node) -> tuple[int, ...] | None:
    """The axes of a Squeeze, Unsqueeze or reduction, sorted and counted from the front.

    Axes of Unsqueeze refer to its output, other axes to the input.
    """
    rank, axes = m.rank(node.inputs[0]), ints_of(m, node, 1, "axes", ())
    if axes is None or rank is None:
        return None
    if node.op_type == "Unsqueeze":
        rank += len(axes)
    elif not axes and node.op_type == "Squeeze":
        return _size_one_axes(m, node) if operand(node, 1) is None and "axes" not in node.attributes else None
    elif not axes:
        if int_of(m, node, "noop_with_empty_axes", 0):
            return ()
        axes = range(rank)
    found = all_normalized(axes, rank)
    return None if found is None else tuple(sorted(found))


def _size_one_axes(m: Match, squeeze: ir.Node) -> tuple[int, ...] | None:
    shape = m.shape(squeeze.inputs[0])
    if shape is None or any(dim != 1 and _may_be_one(dim) for dim in shape):
        return None
    return tuple(axis for axis, dim in enumerate(shape) if dim == 1)


def _may_be_one(dim: Dim) -> bool:
    low, high = symbolic.bounds(dim)
    return low <= 1 <= high


def squeeze(op: Builder, m: Match, x: ir.Value, axes: Sequence[int]) -> ir.Value:
    """Squeeze ``axes``; ``x`` itself without axes."""
    return _with_axes(op, m, "Squeeze", x, axes) if axes else x


def unsqueeze(op: Builder, m: Match, x: ir.Value, axes: Sequence[int]) -> ir.Value:
    """Unsqueeze ``axes`` of the result; ``x`` itself without axes."""
    return _with_axes(op, m, "Unsqueeze", x, axes) if axes else x


def reduce(op: Builder, m: Match, kind: str, x: ir.Value, axes: Sequence[int], keepdims: bool) -> ir.Value:
    """Reduction ``kind`` over ``axes``: at least one, all counted from the front.

    onnxruntime does not reduce the shape of an empty tensor over negative axes.
    """
    assert axes and min(axes) >= 0
    return _with_axes(op, m, kind, x, axes, keepdims=int(keepdims))


def _with_axes(
    op: Builder, m: Match, kind: str, x: ir.Value, axes: Sequence[int], **attributes: int
) -> ir.Value:
    if m.version >= _AXES_INPUT.get(kind, _REDUCE_AXES_INPUT):
        return op.node(kind, (x, np.array(axes, np.int64)), attributes)
    return op.node(kind, (x,), {"axes": list(axes), **attributes})
