"""Broadcasting of operands: alignment, results of the same shape, and elements along one axis."""

from __future__ import annotations

from collections.abc import Sequence

from graphopt import ir
from graphopt.context import Dim
from graphopt.rewrite import Match
from graphopt.rewrite.traced_array import TracedArray


def aligns_right(m: Match) -> bool:
    """Whether operators broadcast as in numpy; before opset 7, attributes control broadcasting."""
    return m.version >= 7


def require_right_alignment(m: Match) -> None:
    """Refuse if operators do not broadcast as in numpy."""
    if not aligns_right(m):
        m.refuse("operators broadcast along a given axis at this opset")


def keeps_shape(m: Match, x: ir.Value, *others: ir.Value) -> bool:
    """Whether broadcasting ``x`` with ``others`` provably results in the shape of ``x``."""
    shape = m.shape(x)
    return aligns_right(m) and all(_fits_into(m, m.shape(other), shape) for other in others)


def _fits_into(m: Match, small: Sequence[Dim] | None, big: Sequence[Dim] | None) -> bool:
    if small is None:
        return False
    if big is None:
        return len(small) == 0
    if len(small) > len(big):
        return False
    aligned = big[len(big) - len(small) :]
    return all(
        (isinstance(a, int) and a == 1) or m.cx.facts.dim_equal(a, b)
        for a, b in zip(small, aligned, strict=True)
    )


def along_axis(array: TracedArray, axis: int, rank: int, size: int) -> TracedArray | None:
    """The elements of ``array``, broadcast to ``rank`` dims, along ``axis`` of length ``size``.

    ``None`` if ``array`` varies along another axis, or if broadcasting would widen the tensor.
    """
    if not array.ndim <= rank > axis:
        return None
    dims = (1,) * (rank - array.ndim) + array.shape
    if any(dim != 1 for index, dim in enumerate(dims) if index != axis) or dims[axis] not in (1, size):
        return None
    return array.reshape(-1).broadcast_to(size)
