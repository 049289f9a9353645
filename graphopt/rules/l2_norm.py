"""Vectors divided by their lengths.

A length without a division is not rewritten: onnxruntime's ReduceL2 is slower than the root of a ReduceSum.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from graphopt import ir
from graphopt.rewrite import Approximates, Builder, Match, Outcome, fusion
from graphopt.rules.building_blocks.axes import axes_of
from graphopt.rules.building_blocks.kernel_availability import require_kernel
from graphopt.rules.building_blocks.shape_equality import require_shape_of

#: Maximum lower bound of a length; vectors shorter than the bound are divided by the bound.
_NOTHING = 1e-6


def _sums(op: Any, x: Any, a: Any) -> Iterator[Any]:
    """The sum of squares."""
    yield op.ReduceSum(op.Mul(x, x), a.rest(), tag="sum")
    yield op.ReduceSum(op.Pow(x, 2), a.rest(), tag="sum")
    yield op.ReduceSumSquare(x, a.rest(), tag="sum")


def _bounded(op: Any, length: Any, low: Any, r: Any) -> Iterator[Any]:
    yield op.Max(length, low.constant())
    yield op.Clip(length, low.constant(), r.rest())


def _unit_vectors(op: Any, x: Any, a: Any, low: Any, r: Any) -> Iterator[Any]:
    for length in (op.ReduceL2(x, a.rest(), tag="sum"), *(op.Sqrt(sum_) for sum_ in _sums(op, x, a))):
        for bounded in _bounded(op, length, low, r):
            yield op.Div(x, bounded)
            yield op.Div(x, op.Expand(bounded, op.Shape(x)))


def _unit_vectors_by_square(op: Any, x: Any, a: Any, low: Any, r: Any) -> Iterator[Any]:
    for sum_ in _sums(op, x, a):
        for bounded in _bounded(op, sum_, low, r):
            yield op.Mul(x, op.Reciprocal(op.Sqrt(bounded)))
            yield op.Div(x, op.Sqrt(bounded))


@fusion(_unit_vectors, numerics=Approximates, pattern="L2 normalization", anchors=("ReduceL2",))
def unit_vector(op: Builder, m: Match, x: ir.Value, low: ir.Value, r: Any) -> Outcome:
    """x / Max(ReduceL2(x), tiny) → LpNormalization(x)."""
    return _normalized(op, m, x, low, r, _NOTHING)


@fusion(
    _unit_vectors_by_square, numerics=Approximates, pattern="L2 normalization", anchors=("ReduceSumSquare",)
)
def unit_vector_by_square(op: Builder, m: Match, x: ir.Value, low: ir.Value, r: Any) -> Outcome:
    """x / Sqrt(Max(ReduceSumSquare(x), tiny)) → LpNormalization(x)."""
    return _normalized(op, m, x, low, r, _NOTHING**2)


def _normalized(op: Builder, m: Match, x: ir.Value, low: ir.Value, rest: Any, nothing: float) -> Outcome:
    node, bound = m.node("sum"), ir.scalar_of(low)
    axes = axes_of(m, node)
    if not axes or len(axes) != 1 or m.attribute(node, "keepdims") != 1:
        return m.no("the norm is not taken along one axis with keepdims", x)
    if bound is None or not 0 < bound <= nothing or any(value is not None for value in rest or ()):
        return m.no("the lower bound of the norm is not negligible", low)
    require_shape_of(m, x)
    require_kernel(m, "LpNormalization", x, domain="")
    return op.fused(op.LpNormalization(x, axis=axes[0], p=2))
