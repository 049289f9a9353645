"""Sums, products and negations: neutral elements, signs and reciprocals."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphopt import ir
from graphopt.analysis.shape_inference.fills import is_number
from graphopt.rewrite import Approximates, Builder, Exact, Match, Outcome, Reassociates, rule
from graphopt.rules.building_blocks import ort_fusions as fusions
from graphopt.rules.building_blocks.broadcasting import keeps_shape, require_right_alignment
from graphopt.rules.building_blocks.computed_constants import affordable
from graphopt.rules.building_blocks.denormals import never_denormal
from graphopt.rules.building_blocks.element_type_sets import FLOATS, INTEGERS
from graphopt.rules.building_blocks.operands import other_operand

# Neutral elements ----------------------------------------------------------------------------


def _neutral(m: Match, x: ir.Value) -> Any:
    return x if keeps_shape(m, x, other_operand(m.root, x)) else m.no("the constant may widen the shape", x)


@rule(
    lambda op, x: op.Mul(x, 1),
    lambda op, x: op.Div(x, 1),
    lambda op, x: op.Pow(x, 1),
    numerics=Exact,
    proven_exact=True,
    tags=(
        "onnxslim:mul-1",
        "onnxslim:div-1",
        "onnxoptimizer:eliminate_nop_with_unit",
        "onnxscript:mul-by-1",
        "onnxscript:div-by-1",
        "onnxruntime:NoopElimination",
    ),
)
def drop_unit(op: Builder, m: Match, x: ir.Value) -> Outcome:
    """Mul(x, 1), Div(x, 1), Pow(x, 1) → x."""
    if m.root.op_type == "Pow" and m.dtype(x) not in FLOATS:
        return m.no("an integer is raised to a power in floating point", x)
    if fusions.is_normalized(x):
        return m.no(fusions.NORMALIZATION, x)
    return _neutral(m, x)


@rule(
    lambda op, x: op.Add(x, -0.0),
    lambda op, x: op.Add(x, 0),
    lambda op, x: op.Sub(x, 0),
    numerics=Exact,
    tags=(
        "onnxslim:add-0",
        "onnxslim:sub-0",
        "onnxoptimizer:eliminate_nop_with_unit",
        "onnxscript:sub-0",
        "onnxruntime:NoopElimination",
    ),
)
def drop_zero(op: Builder, m: Match, x: ir.Value) -> Outcome:
    """Sub(x, 0), Add(x, -0.0) → x; Add(x, 0) → x for integers."""
    is_float_sum = m.root.op_type == "Add" and m.dtype(x) not in INTEGERS
    if is_float_sum and not is_number(m.fill(other_operand(m.root, x)), -0.0):
        return m.no("adding 0.0 turns -0.0 into 0.0", x)
    return m.no(fusions.NORMALIZATION, x) if fusions.is_scaled_norm(x) else _neutral(m, x)


@rule(
    lambda op, x: op.Add(x, 0),
    lambda op, x: op.Sub(x, -0.0),
    numerics=Reassociates,
    tags=("onnxslim:add-0", "onnxoptimizer:eliminate_nop_with_unit", "onnxscript:add-0"),
)
def drop_positive_zero(op: Builder, m: Match, x: ir.Value) -> Outcome:
    """Add(x, 0.0), Sub(x, -0.0) → x, except for the sign of a zero."""
    return m.no(fusions.NORMALIZATION, x) if fusions.is_scaled_norm(x) else _neutral(m, x)


@rule(lambda op, x: op.one_of("Max", "Min", "And", "Or", "BitwiseAnd", "BitwiseOr")(x, x), numerics=Exact)
def drop_equal_operands(op: Builder, m: Match, x: ir.Value) -> Outcome:
    """Max(x, x), Min(x, x), And(x, x), Or(x, x) → x."""
    return x


@rule(lambda op, x, y: op.Sum(x, y), numerics=Exact, proven_exact=True)
def sum_to_add(op: Builder, m: Match, x: ir.Value, y: ir.Value) -> Outcome:
    """Sum(x, y) → Add(x, y), which more rules and fusions of onnxruntime recognize."""
    if m.version < 8:
        return m.no("operators broadcast differently at this opset")
    if fusions.is_before_norm(m.root.outputs[0]):
        return m.no(fusions.SKIP_NORM)
    return op.Add(x, y)


# Signs ---------------------------------------------------------------------------------------


@rule(
    lambda op, x: op.Neg(op.Neg(x)),
    lambda op, x: op.Not(op.Not(x)),
    lambda op, x: op.BitwiseNot(op.BitwiseNot(x)),
    numerics=Exact,
    proven_exact=True,
)
def cancel_negations(op: Builder, m: Match, x: ir.Value) -> Outcome:
    """Neg(Neg(x)), Not(Not(x)) → x."""
    return x


@rule(
    lambda op, x, y: op.Add(x, op.Neg(y)),
    lambda op, x, y: op.Sub(x, op.Neg(y)),
    lambda op, x, y: op.Mul(op.Neg(x), op.Neg(y)),
    lambda op, x, y: op.Div(op.Neg(x), op.Neg(y)),
    lambda op, x: op.Abs(op.Neg(x)),
    numerics=Exact,
)
def absorb_negation(op: Builder, m: Match, x: ir.Value, y: ir.Value) -> Outcome:
    """x + -y → x - y; x - -y → x + y; -x * -y → x * y; -x / -y → x / y; |-x| → |x|."""
    require_right_alignment(m)
    match m.root.op_type:
        case "Add":
            return op.Sub(x, y)
        case "Sub":
            return op.Add(x, y)
        case "Mul":
            return op.Mul(x, y)
        case "Abs":
            return op.Abs(x)
    if m.dtype(x) not in FLOATS:
        return m.no("the smallest integer is its own negation", x)
    return op.Div(x, y)


@rule(lambda op, x, y: op.Neg(op.Sub(x, y)), numerics=Reassociates, exclusive=True)
def swap_difference(op: Builder, m: Match, x: ir.Value, y: ir.Value) -> Outcome:
    """-(x - y) → y - x, except for the sign of a zero."""
    require_right_alignment(m)
    return op.Sub(y, x)


@rule(
    lambda op, x, c: op.one_of("Mul", "Div")(op.Neg(x), c.constant(), tag="product"),
    lambda op, x, c: op.Neg(op.one_of("Mul", "Div")(x, c.constant(), tag="product")),
    numerics=Exact,
    exclusive=True,
)
def negate_constant(op: Builder, m: Match, x: ir.Value, c: ir.Value) -> Outcome:
    """-(x * c) → x * -c; -(x / c) → x / -c."""
    require_right_alignment(m)
    number = m.constant(c)
    if m.dtype(x) not in FLOATS or number is None:
        return m.no("the smallest integer is its own negation", x)
    if m.dtype(x) == ir.DataType.DOUBLE:
        return m.no("onnxruntime fuses a scaled MatMul with a scale of float", x)
    if not affordable(m, number.nbytes, c):
        return m.no("the constant has other readers, and a copy is large", c, shared=True)
    return op.node(m.node("product").op_type, [x, np.asarray(-number)])


# Quotients -----------------------------------------------------------------------------------


@rule(
    lambda op, x, y: op.Mul(op.Div(1, x, tag="inverse"), y),
    lambda op, x, y: op.Mul(op.Reciprocal(x, tag="inverse"), y),
    lambda op, x, y: op.Div(y, op.Reciprocal(x, tag="inverse")),
    numerics=Reassociates,
    exclusive=True,
    tags=("onnxruntime:DivMulFusion",),
)
def join_reciprocal(op: Builder, m: Match, x: ir.Value, y: ir.Value) -> Outcome:
    """1 / x * y → y / x, if x is never denormal; y / (1 / x) → y * x."""
    if m.root.op_type == "Mul" and not never_denormal(m, x):
        return m.no("1 / x is infinite where x is denormal; --fast-math allows that it becomes finite", x)
    return _joined(op, m, x, y)


@rule(
    lambda op, x, y: op.Mul(op.Div(1, x, tag="inverse"), y),
    lambda op, x, y: op.Mul(op.Reciprocal(x, tag="inverse"), y),
    numerics=Approximates,
    exclusive=True,
    tags=("onnxruntime:DivMulFusion",),
)
def join_any_reciprocal(op: Builder, m: Match, x: ir.Value, y: ir.Value) -> Outcome:
    """1 / x * y → y / x, which is finite even if x is denormal and 1 / x infinite."""
    return _joined(op, m, x, y)


def _joined(op: Builder, m: Match, x: ir.Value, y: ir.Value) -> Outcome:
    require_right_alignment(m)
    inverse = m.node("inverse")
    if m.dtype(x) not in FLOATS:
        return m.no("integers are rounded in between", x)
    if inverse.op_type == "Div":
        one = inverse.inputs[0]
        assert one is not None
        if not keeps_shape(m, x, one):
            return m.no("the constant may widen the shape", one)
    elif not keeps_shape(m, x, y):
        return m.no("dividing a larger tensor costs more than multiplying it", y)
    return op.Mul(y, x) if m.root.op_type == "Div" else op.Div(y, x)
