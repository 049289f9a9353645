"""Refusals because of unknown sizes; the reasons name the dims, which ``--dim`` fixes."""

from __future__ import annotations

from graphopt import ir
from graphopt.analysis.symbolic import Dim
from graphopt.context import Context
from graphopt.fusion.loops.ir import CantFuse

#: The last words of these reasons, and the words before them in reasons about two sizes.
UNKNOWN = "is unknown before the model runs"
EQUAL = "are equal"


def obstacle_to_static_shape(value: ir.Value, cx: Context) -> str | None:
    """The reason that names the first unknown size of ``value``; ``None`` if all are known."""
    shape = cx.shape(value)
    if shape is None:
        return f"the rank of {value.name!r} is unknown"
    for axis, dim in enumerate(shape):
        if not isinstance(dim, int):
            return f"the size {dim} of {value.name!r} on axis {axis} {UNKNOWN}"
    return None


def require_static_shape(value: ir.Value, cx: Context) -> tuple[int, ...]:
    """The shape of ``value``; raises CantFuse if a size is unknown."""
    shape = cx.static_shape(value)
    if shape is None:
        raise CantFuse(str(obstacle_to_static_shape(value, cx)))
    return shape


def require_static_size(value: ir.Value, axis: int, cx: Context) -> int:
    """The size of one axis of ``value``; raises CantFuse if it is unknown."""
    shape = cx.shape(value)
    if shape is None:
        raise CantFuse(f"the rank of {value.name!r} is unknown")
    dim = shape[axis]
    if not isinstance(dim, int):
        raise CantFuse(f"the size {dim} of {value.name!r} on axis {axis} {UNKNOWN}")
    return dim


def require_equal(a: Dim, b: Dim, cx: Context, fault: str) -> None:
    """Require that two sizes are equal.

    Raises:
        CantFuse: they differ, with the reason ``fault``, or may differ.
    """
    if cx.facts.dim_equal(a, b):
        return
    if isinstance(a, int) and isinstance(b, int):
        raise CantFuse(fault)
    raise CantFuse(f"whether {a} and {b} {EQUAL} {UNKNOWN}")
