"""Chains of sums or products with constants: the constants are combined into one."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from graphopt import ir
from graphopt.rewrite import Builder, Exact, Match, Outcome, Reassociates, rule
from graphopt.rewrite.traced_array import TracedArray
from graphopt.rules.building_blocks.broadcasting import require_right_alignment
from graphopt.rules.building_blocks.computed_constants import affordable, rounded
from graphopt.rules.building_blocks.element_type_sets import FLOATS, INTEGERS


def _is_left_operand(node: ir.Node, constant: ir.Value) -> bool:
    """Whether the constant is the first operand of a Sub or Div."""
    return node.op_type in ("Sub", "Div") and node.inputs[0] is constant


def _offset(node: ir.Node, constant: ir.Value, number: np.ndarray) -> tuple[int, np.ndarray]:
    """(s, c) such that ``node`` computes s * x + c."""
    if _is_left_operand(node, constant):
        return -1, number
    return 1, -number if node.op_type == "Sub" else number


def _numbers(
    m: Match, x: ir.Value, a: ir.Value, b: ir.Value, dtypes: Collection[ir.DataType], otherwise: str
) -> tuple[np.ndarray, np.ndarray]:
    """The constants ``a`` and ``b``; refuses if they do not align, or ``x`` has none of the ``dtypes``."""
    require_right_alignment(m)
    first, second = m.constant(a), m.constant(b)
    known = m.dtype(x) in dtypes and m.dtype(a) == m.dtype(b) == m.dtype(x)
    if not known or first is None or second is None:
        m.refuse(otherwise, x)
    return first, second


_OFFSETS = (
    lambda op, x, a, b: op.one_of("Add", "Sub")(
        op.one_of("Add", "Sub")(x, a.constant(), tag="inner"), b.constant()
    ),
    lambda op, x, a, b: op.one_of("Add", "Sub")(op.Sub(a.constant(), x, tag="inner"), b.constant()),
    lambda op, x, a, b: op.Sub(b.constant(), op.one_of("Add", "Sub")(x, a.constant(), tag="inner")),
    lambda op, x, a, b: op.Sub(b.constant(), op.Sub(a.constant(), x, tag="inner")),
)


def _joined_offset(op: Builder, sign: int, x: ir.Value, c: np.ndarray | TracedArray) -> Outcome:
    return op.Add(x, c) if sign > 0 else op.Sub(c, x)


@rule(*_OFFSETS, numerics=Exact, exclusive=True)
def join_integer_offsets(op: Builder, m: Match, x: ir.Value, a: ir.Value, b: ir.Value) -> Outcome:
    """(x + a) + b → x + (a + b), also for Sub; integers wrap around in any order."""
    first, second = _numbers(m, x, a, b, INTEGERS, "not integers")
    with np.errstate(over="ignore"):
        s1, c1 = _offset(m.node("inner"), a, first)
        s2, c2 = _offset(m.root, b, second)
        c = np.asarray(c1 + c2 if s2 > 0 else c2 - c1)
    if not affordable(m, c.nbytes, a, b):
        return m.no("the combined constant is larger than both", x)
    return _joined_offset(op, s1 * s2, x, c)


#: Fraction of a constant that may be lost in a sum with another constant.
_LOST = 0.01


@rule(*_OFFSETS, numerics=Reassociates, exclusive=True)
def join_offsets(op: Builder, m: Match, x: ir.Value, a: ir.Value, b: ir.Value) -> Outcome:
    """(x + a) + b → x + (a + b), also for Sub, unless a and b cancel."""
    first, second = _numbers(m, x, a, b, FLOATS, "not floats")
    s1, c1 = _offset(m.node("inner"), a, first.astype(np.float64))
    s2, c2 = _offset(m.root, b, second.astype(np.float64))
    total = np.asarray(s2 * c1 + c2)
    if np.any(4 * np.abs(total) < np.maximum(np.abs(c1), np.abs(c2))):
        # (x + 1e9) - 1e9 rounds x: the rewrite would change the result visibly
        return m.no("the constants cancel", x)
    with np.errstate(invalid="ignore"):  # infinity stays infinity
        lost = np.abs(total.astype(first.dtype).astype(np.float64) - total)
    if np.any(lost > _LOST * np.abs(np.where(c2 == 0, total, c2))):
        # for x = 1.185, x - 1.185 + 6e-5 is 6e-5, but 0 if the sum of the constants is rounded
        return m.no("the sum of the constants rounds away the second one", x)
    c = rounded(TracedArray.of(total), first.dtype)
    if c is None:
        return m.no("the sum of the constants overflows", x)
    if not affordable(m, c.nbytes, a, b):
        return m.no("the combined constant is larger than both", x)
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
    """(x * a) * b → x * (a * b); x / a / b → x / (a * b) for positive a and b."""
    first, second = _numbers(m, x, a, b, INTEGERS, "not integers")
    with np.errstate(over="ignore"):
        c = np.asarray(first * second)
    if m.root.op_type == "Div":
        limit = np.iinfo(c.dtype).max
        if np.any(first <= 0) or np.any(second <= 0) or np.any(first > limit // second):
            return m.no("the product of the divisors is not a positive number", x)
    if not affordable(m, c.nbytes, a, b):
        return m.no("the combined constant is larger than both", x)
    return op.node(m.root.op_type, [x, c])


@rule(*_SCALES, numerics=Reassociates, exclusive=True)
def join_scales(op: Builder, m: Match, x: ir.Value, a: ir.Value, b: ir.Value) -> Outcome:
    """(x * a) * b → x * (a * b), also for Div, if no intermediate value can overflow."""
    first, second = _numbers(m, x, a, b, FLOATS, "not floats")
    if not first.size or not second.size:
        return m.no("a constant is empty", x)
    if not (np.all(np.isfinite(first) & (first != 0)) and np.all(np.isfinite(second) & (second != 0))):
        return m.no("a factor is 0 or not finite", x)
    inner = m.node("inner")
    p1, f1 = _scale(inner, a, first.astype(np.float64))
    p2, f2 = _scale(m.root, b, second.astype(np.float64))
    if not _harmless_between(f1, f2, p2, m.dtype(x)):
        return m.no("the intermediate value may overflow where the result does not", x)
    factor = np.asarray((f1 if p2 > 0 else 1 / f1) * f2)
    both_divide = inner.op_type == m.root.op_type == "Div" and p1 == p2 == 1
    c = rounded(TracedArray.of(1 / factor if both_divide else factor), first.dtype)
    if c is None:
        return m.no("the product of the constants overflows or vanishes", x)
    if not affordable(m, c.nbytes, a, b):
        return m.no("the combined constant is larger than both", x)
    if p1 * p2 < 0:
        return op.Div(c, x)
    return op.Div(x, c) if both_divide else op.Mul(x, c)


def _scale(node: ir.Node, constant: ir.Value, number: np.ndarray) -> tuple[int, np.ndarray]:
    """(p, f) such that ``node`` computes x ** p * f, where p is 1 or -1."""
    if _is_left_operand(node, constant):
        return -1, number
    return 1, 1 / number if node.op_type == "Div" else number


def _harmless_between(f1: np.ndarray, f2: np.ndarray, power: int, dtype: ir.DataType | None) -> bool:
    """Whether y = x * f1 overflows or underflows only if y ** power * f2 also does."""
    low, high = np.min(np.abs(f1)), np.max(np.abs(f1))
    if power > 0 and (high <= 1 or np.min(np.abs(f2)) >= 1):
        return True
    # assumes that values have a margin of 2**16 to the limits of the type
    return dtype != ir.DataType.FLOAT16 and low >= 2.0**-16 and high <= 2.0**16
