"""Adding, multiplying, negating: neutral elements, signs, and chains of constants."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphopt import ir
from graphopt.rewrite import Exact, Match, Outcome, Reassociates, rule
from graphopt.rewrite.builder import Builder
from graphopt.rules._constants import FLOATS, INTEGERS, affordable, exact, keeps_shape, rounded

# Neutral elements ----------------------------------------------------------------------------


def _other(m: Match, x: ir.Value) -> ir.Value:
    """The operand of the root beside ``x``."""
    a, b = m.root.inputs
    other = b if a is x else a
    assert other is not None
    return other


def _neutral(m: Match, x: ir.Value) -> Any:
    return x if keeps_shape(m, x, _other(m, x)) else m.no("the constant may widen the shape", x)


@rule(
    lambda op, x: op.Mul(x, 1),
    lambda op, x: op.Div(x, 1),
    lambda op, x: op.Pow(x, 1),
    numerics=Exact,
    tags=(
        "onnxslim:mul-1",
        "onnxslim:div-1",
        "onnxoptimizer:nop-with-unit",
        "onnxscript:mul-by-1",
        "onnxscript:div-by-1",
    ),
)
def drop_unit(op: Builder, m: Match, x: ir.Value) -> Outcome:
    """x * 1 = x / 1 = x ** 1 = x."""
    if m.root.op_type == "Pow" and m.dtype(x) not in FLOATS:
        return m.no("an integer is raised to a power in floating point", x)
    return _neutral(m, x)


@rule(
    lambda op, x: op.Add(x, -0.0),
    lambda op, x: op.Add(x, 0),
    lambda op, x: op.Sub(x, 0),
    numerics=Exact,
    tags=("onnxslim:add-0", "onnxslim:sub-0", "onnxoptimizer:nop-with-unit", "onnxscript:sub-0"),
)
def drop_zero(op: Builder, m: Match, x: ir.Value) -> Outcome:
    """x - 0 = x; x + 0 = x for integers, x + -0.0 = x for floats."""
    zero = m.constant(_other(m, x))
    assert zero is not None
    if m.root.op_type == "Add" and m.dtype(x) not in INTEGERS and not np.all(np.signbit(zero)):
        return m.no("adding 0.0 turns -0.0 into 0.0", x)
    return _neutral(m, x)


@rule(
    lambda op, x: op.Add(x, 0),
    lambda op, x: op.Sub(x, -0.0),
    numerics=Reassociates,
    tags=("onnxslim:add-0", "onnxoptimizer:nop-with-unit", "onnxscript:add-0"),
)
def drop_positive_zero(op: Builder, m: Match, x: ir.Value) -> Outcome:
    """x + 0.0 = x, but for the sign of a zero."""
    return _neutral(m, x)


@rule(
    lambda op, x: op.one_of("Max", "Min", "And", "Or", "BitwiseAnd", "BitwiseOr")(x, x),
    numerics=Exact,
)
def drop_equal_operands(op: Builder, m: Match, x: ir.Value) -> Outcome:
    """max(x, x) = min(x, x) = (x and x) = (x or x) = x."""
    return x


@rule(lambda op, x, y: op.Sum(x, y), numerics=Exact)
def sum_to_add(op: Builder, m: Match, x: ir.Value, y: ir.Value) -> Outcome:
    """A Sum of two is an Add, which other rules and the runtime's fusions know."""
    return op.Add(x, y) if m.version >= 8 else m.no("operators broadcast differently at this opset")


# Signs ---------------------------------------------------------------------------------------


@rule(
    lambda op, x: op.Neg(op.Neg(x)),
    lambda op, x: op.Not(op.Not(x)),
    lambda op, x: op.BitwiseNot(op.BitwiseNot(x)),
    numerics=Exact,
)
def cancel_negations(op: Builder, m: Match, x: ir.Value) -> Outcome:
    """--x = x, and not not x = x."""
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
    """x + -y = x - y, x - -y = x + y, -x * -y = x * y, -x / -y = x / y, |-x| = |x|."""
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
        return m.no("integers have a smallest number that its negation equals", x)
    return op.Div(x, y)


@rule(lambda op, x, y: op.Neg(op.Sub(x, y)), numerics=Reassociates, exclusive=True)
def swap_difference(op: Builder, m: Match, x: ir.Value, y: ir.Value) -> Outcome:
    """-(x - y) = y - x, but for the sign of a zero."""
    return op.Sub(y, x)


@rule(
    lambda op, x, c: op.one_of("Mul", "Div")(op.Neg(x), c.constant(), tag="product"),
    lambda op, x, c: op.Neg(op.one_of("Mul", "Div")(x, c.constant(), tag="product")),
    numerics=Exact,
    exclusive=True,
)
def negate_constant(op: Builder, m: Match, x: ir.Value, c: ir.Value) -> Outcome:
    """-(x * c) = x * -c, and the same for a quotient."""
    number = m.constant(c)
    if m.dtype(x) not in FLOATS or number is None:
        return m.no("integers have a smallest number that its negation equals", x)
    if not affordable(m, number.nbytes, c):
        return m.no("others read the constant, and a copy is large", c)
    return op.node(m.node("product").op_type, [x, np.asarray(-number)])


# Chains of constants -------------------------------------------------------------------------


def _lies_left(node: ir.Node, constant: ir.Value) -> bool:
    """Whether the constant operand stands first in a Sub or Div."""
    return node.op_type in ("Sub", "Div") and node.inputs[0] is constant


def _offset(node: ir.Node, constant: ir.Value, number: np.ndarray) -> tuple[int, np.ndarray]:
    """(s, c) such that ``node`` computes s * x + c."""
    if _lies_left(node, constant):
        return -1, number
    return 1, -number if node.op_type == "Sub" else number


_OFFSETS = (
    lambda op, x, a, b: op.one_of("Add", "Sub")(
        op.one_of("Add", "Sub")(x, a.constant(), tag="inner"), b.constant()
    ),
    lambda op, x, a, b: op.one_of("Add", "Sub")(op.Sub(a.constant(), x, tag="inner"), b.constant()),
    lambda op, x, a, b: op.Sub(b.constant(), op.one_of("Add", "Sub")(x, a.constant(), tag="inner")),
    lambda op, x, a, b: op.Sub(b.constant(), op.Sub(a.constant(), x, tag="inner")),
)


def _joined_offset(op: Builder, sign: int, x: ir.Value, c: np.ndarray) -> Outcome:
    return op.Add(x, c) if sign > 0 else op.Sub(c, x)


@rule(*_OFFSETS, numerics=Exact, exclusive=True)
def join_integer_offsets(op: Builder, m: Match, x: ir.Value, a: ir.Value, b: ir.Value) -> Outcome:
    """(x + a) + b = x + (a + b), with differences too: integers wrap around in any order."""
    first, second = m.constant(a), m.constant(b)
    if m.dtype(x) not in INTEGERS or first is None or second is None:
        return m.no("not integers", x)
    with np.errstate(over="ignore"):
        s1, c1 = _offset(m.node("inner"), a, first)
        s2, c2 = _offset(m.root, b, second)
        c = np.asarray(c1 + c2 if s2 > 0 else c2 - c1)
    if not affordable(m, c.nbytes, a, b):
        return m.no("the joint constant is larger than both", x)
    return _joined_offset(op, s1 * s2, x, c)


@rule(*_OFFSETS, numerics=Reassociates, exclusive=True)
def join_offsets(op: Builder, m: Match, x: ir.Value, a: ir.Value, b: ir.Value) -> Outcome:
    """(x + a) + b = x + (a + b), with differences too, unless a and b cancel each other."""
    first, second = m.constant(a), m.constant(b)
    if m.dtype(x) not in FLOATS or first is None or second is None:
        return m.no("not floats", x)
    s1, c1 = _offset(m.node("inner"), a, exact(first))
    s2, c2 = _offset(m.root, b, exact(second))
    total = np.asarray(s2 * c1 + c2)
    if np.any(4 * np.abs(total) < np.maximum(np.abs(c1), np.abs(c2))):
        # (x + 1e9) - 1e9 rounds x on purpose, or by mistake, but in any case visibly
        return m.no("the constants cancel", x)
    c = rounded(total, first.dtype)
    if c is None:
        return m.no("the sum of the constants overflows", x)
    if not affordable(m, c.nbytes, a, b):
        return m.no("the joint constant is larger than both", x)
    return _joined_offset(op, s1 * s2, x, c)


_SCALES = (
    lambda op, x, a, b: op.one_of("Mul", "Div")(
        op.one_of("Mul", "Div")(x, a.constant(), tag="inner"), b.constant()
    ),
    lambda op, x, a, b: op.one_of("Mul", "Div")(op.Div(a.constant(), x, tag="inner"), b.constant()),
    lambda op, x, a, b: op.Div(b.constant(), op.one_of("Mul", "Div")(x, a.constant(), tag="inner")),
    lambda op, x, a, b: op.Div(b.constant(), op.Div(a.constant(), x, tag="inner")),
)


@rule(
    lambda op, x, a, b: op.Mul(op.Mul(x, a.constant()), b.constant()),
    lambda op, x, a, b: op.Div(op.Div(x, a.constant()), b.constant()),
    numerics=Exact,
    exclusive=True,
)
def join_integer_scales(op: Builder, m: Match, x: ir.Value, a: ir.Value, b: ir.Value) -> Outcome:
    """(x * a) * b = x * (a * b), wrapping around; x / a / b = x / (a * b) for positive a and b."""
    first, second = m.constant(a), m.constant(b)
    if m.dtype(x) not in INTEGERS or first is None or second is None:
        return m.no("not integers", x)
    with np.errstate(over="ignore"):
        c = np.asarray(first * second)
    if m.root.op_type == "Div":
        limit = np.iinfo(c.dtype).max
        if np.any(first <= 0) or np.any(second <= 0) or np.any(first > limit // second):
            return m.no("the product of the divisors is not a positive number", x)
    if not affordable(m, c.nbytes, a, b):
        return m.no("the joint constant is larger than both", x)
    return op.node(m.root.op_type, [x, c])


@rule(*_SCALES, numerics=Reassociates, exclusive=True)
def join_scales(op: Builder, m: Match, x: ir.Value, a: ir.Value, b: ir.Value) -> Outcome:
    """(x * a) * b = x * (a * b), with quotients too, where nothing can overflow in between."""
    first, second = m.constant(a), m.constant(b)
    if m.dtype(x) not in FLOATS or first is None or second is None:
        return m.no("not floats", x)
    if not (np.all(np.isfinite(first) & (first != 0)) and np.all(np.isfinite(second) & (second != 0))):
        return m.no("a factor is 0 or not finite", x)
    inner = m.node("inner")
    p1, f1 = _scale(inner, a, exact(first))
    p2, f2 = _scale(m.root, b, exact(second))
    if not _harmless_between(f1, f2, p2, m.dtype(x)):
        return m.no("what is between may overflow where the result does not", x)
    factor = np.asarray((f1 if p2 > 0 else 1 / f1) * f2)
    both_divide = inner.op_type == m.root.op_type == "Div" and p1 == p2 == 1
    c = rounded(1 / factor if both_divide else factor, first.dtype)
    if c is None:
        return m.no("the product of the constants overflows or vanishes", x)
    if not affordable(m, c.nbytes, a, b):
        return m.no("the joint constant is larger than both", x)
    if p1 * p2 < 0:
        return op.Div(c, x)
    return op.Div(x, c) if both_divide else op.Mul(x, c)


def _scale(node: ir.Node, constant: ir.Value, number: np.ndarray) -> tuple[int, np.ndarray]:
    """(p, f) such that ``node`` computes x ** p * f, where p is 1 or -1."""
    if _lies_left(node, constant):
        return -1, number
    return 1, 1 / number if node.op_type == "Div" else number


def _harmless_between(f1: np.ndarray, f2: np.ndarray, power: int, dtype: ir.DataType | None) -> bool:
    """Whether y = x * f1 overflows, or vanishes, only where y ** power * f2 does."""
    low, high = np.min(np.abs(f1)), np.max(np.abs(f1))
    if power > 0 and (high <= 1 or np.min(np.abs(f2)) >= 1):
        return True
    # these exponents leave room: nobody computes with numbers that near to the limits
    return dtype != ir.DataType.FLOAT16 and low >= 2.0**-16 and high <= 2.0**16


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
    """1 / x * y = y / x, and y / (1 / x) = y * x."""
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
