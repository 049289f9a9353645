"""L2 norms: the root of a sum of squares, and what is divided by it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from graphopt import ir
from graphopt.rewrite import Approximates, Match, Outcome, Reassociates, rule
from graphopt.rewrite.builder import Builder
from graphopt.rules import _forms as forms

#: A norm below this is nothing: vectors that are shorter are divided by it instead of their length.
_NOTHING = 1e-6


def _roots(op: Any, x: Any, a: Any) -> Iterator[Any]:
    for square in (op.Mul(x, x), op.Pow(x, 2)):
        sum_ = op.ReduceSum(square, a.rest(), tag="sum")
        yield op.Sqrt(sum_)
        yield op.Pow(sum_, 0.5)
    yield op.Sqrt(op.ReduceSumSquare(x, a.rest(), tag="sum"))


@rule(
    _roots,
    numerics=Reassociates,
    exclusive=True,
    fuses=True,
    pattern="L2 norm",
    anchors=("ReduceSumSquare",),
)
def root_of_squares(op: Builder, m: Match, x: ir.Value, a: object) -> Outcome:
    """The root of a sum of squares is a ReduceL2."""
    node, dtype = m.node("sum"), m.dtype(x)
    axes, keeps = forms.axes_of(m, node), m.attribute(node, "keepdims")
    if not axes or isinstance(keeps, ir.Attr):
        return m.no("the axes are unknown", x)
    if not m.cx.target.has_kernel("ReduceL2", "", m.version, dtype):
        return m.no("the target has no kernel for it", x)
    return forms.reduce(op, m, "ReduceL2", x, axes, keepdims=bool(keeps))


def _unit_vectors(op: Any, x: Any, a: Any, low: Any, r: Any) -> Iterator[Any]:
    length = op.ReduceL2(x, a.rest(), tag="length")
    for bounded in (op.Max(length, low.constant()), op.Clip(length, low.constant(), r.rest())):
        yield op.Div(x, bounded)
        yield op.Div(x, op.Expand(bounded, op.Shape(x)))


@rule(
    _unit_vectors,
    numerics=Approximates,
    exclusive=True,
    fuses=True,
    pattern="L2 normalization",
    anchors=("ReduceL2",),
)
def unit_vector(op: Builder, m: Match, x: ir.Value, a: object, low: ir.Value, r: Any) -> Outcome:
    """x over its length, unless that is next to nothing, is an LpNormalization."""
    node, bound, dtype = m.node("length"), ir.scalar_of(low), m.dtype(x)
    axes = forms.axes_of(m, node)
    if not axes or len(axes) != 1 or m.attribute(node, "keepdims") != 1:
        return m.no("it is not the length along one axis, which stays as 1", x)
    if bound is None or not 0 < bound <= _NOTHING or any(value is not None for value in r or ()):
        return m.no("what the length is at least is not next to nothing", low)
    if not forms.keeps_shape_of(m, x):
        return m.no(forms.WIDENED, x)
    if not m.cx.target.has_kernel("LpNormalization", "", m.version, dtype):
        return m.no("the target has no kernel for it", x)
    return op.LpNormalization(x, axis=axes[0], p=2)
