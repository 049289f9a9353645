"""Shapes that are provably equal."""

from __future__ import annotations

from collections.abc import Sequence

from graphopt import ir
from graphopt.analysis.symbolic import Dim
from graphopt.rewrite import Match


def same_shape(m: Match, a: Sequence[Dim] | None, b: Sequence[Dim] | None) -> bool:
    """Whether two shapes are provably equal."""
    return a is not None and b is not None and len(a) == len(b) and all(map(m.cx.facts.dim_equal, a, b))


#: The refusal if the result of a pattern may not have the shape of its operand.
WIDENED = "the result has another shape, or an unknown one: a constant may broadcast it"


def keeps_shape_of(m: Match, x: ir.Value) -> bool:
    """Whether the root provably has the shape of ``x``."""
    return same_shape(m, m.shape(m.root.outputs[0]), m.shape(x))


def require_shape_of(m: Match, x: ir.Value) -> None:
    """Refuse unless the root provably has the shape of ``x``."""
    if not keeps_shape_of(m, x):
        m.refuse(WIDENED, x)


def has_one_element(m: Match, value: ir.Value | None) -> bool:
    """Whether ``value`` provably has one element."""
    shape = m.shape(value)
    return shape is not None and all(dim == 1 for dim in shape)
