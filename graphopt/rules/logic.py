"""Booleans: constant or negated conditions."""

from __future__ import annotations

from graphopt import ir
from graphopt.rewrite import Builder, Exact, Match, Outcome, Reassociates, rule
from graphopt.rules.building_blocks.broadcasting import keeps_shape
from graphopt.rules.building_blocks.operands import other_operand

_BOOL = ir.DataType.BOOL


@rule(
    lambda op, c, a, b: op.Where(op.Not(c), a, b),
    numerics=Reassociates,
    tags=("onnxoptimizer:rewrite_where", "onnxruntime:NotWhereFusion"),
)
def where_not(op: Builder, m: Match, c: ir.Value, a: ir.Value, b: ir.Value) -> Outcome:
    """Where(Not(c), a, b) → Where(c, b, a) (onnxruntime's Where may change the sign of zeros)."""
    return op.Where(c, b, a)


@rule(lambda op, c, a: op.Where(c, a, a), lambda op, c, a, b: op.Where(c, a, b), numerics=Reassociates)
def where_constant(op: Builder, m: Match, c: ir.Value, a: ir.Value, b: ir.Value | None) -> Outcome:
    """Where(True, a, b), Where(c, a, a) → a; Where(False, a, b) → b.

    Not exact, because onnxruntime's Where may change the sign of zeros.
    """
    condition, chosen = m.fill(c), a
    if b is not None:
        if condition is None:
            return m.no("the condition is not constant", c)
        chosen = a if condition else b
    others = [value for value in m.root.inputs if value is not None and value is not chosen]
    if not keeps_shape(m, chosen, *others):
        return m.no("the other operands may widen the shape", chosen)
    return chosen


@rule(
    lambda op, x: op.one_of("And", "Equal")(x, True),
    lambda op, x: op.one_of("Or", "Xor")(x, False),
    lambda op, x: op.Equal(x, False),
    lambda op, x: op.Xor(x, True),
    numerics=Exact,
    proven_exact=True,
)
def drop_neutral_condition(op: Builder, m: Match, x: ir.Value) -> Outcome:
    """And(x, True), Or(x, False), Equal(x, True) → x; Equal(x, False), Xor(x, True) → Not(x)."""
    constant = other_operand(m.root, x)
    if m.dtype(x) != _BOOL or not keeps_shape(m, x, constant):
        return m.no("not booleans, or the constant may widen the shape", x)
    keeps = bool(m.fill(constant)) == (m.root.op_type in ("And", "Equal"))
    return x if keeps else op.Not(x)


_OPPOSITE = {
    "Less": "GreaterOrEqual",
    "Greater": "LessOrEqual",
    "LessOrEqual": "Greater",
    "GreaterOrEqual": "Less",
}


@rule(lambda op, x, y: op.Not(op.one_of(*_OPPOSITE)(x, y, tag="comparison")), numerics=Exact, exclusive=True)
def negate_comparison(op: Builder, m: Match, x: ir.Value, y: ir.Value) -> Outcome:
    """Not(x < y) → x >= y, and so on, for integers: floats may be NaN."""
    if m.dtype(x) not in (ir.DataType.INT32, ir.DataType.INT64):
        return m.no("both comparisons are false for NaN", x)
    if m.version < 12:
        return m.no("the opposite comparison is not an operator at this opset")
    return op.node(_OPPOSITE[m.node("comparison").op_type], [x, y])
