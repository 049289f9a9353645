"""Comparisons, logic, choices and bits."""

from __future__ import annotations

from graphopt.fusion.body import Body, Term
from graphopt.fusion.operator import ANY, BOOL, FLOATS, INTEGERS, NUMBERS, At, operator


@operator("Less", types=NUMBERS)
def less(b: Body, at: At, x: Term, y: Term) -> Term:
    """x < y."""
    return x < y


@operator("LessOrEqual", types=NUMBERS)
def less_or_equal(b: Body, at: At, x: Term, y: Term) -> Term:
    """x ≤ y."""
    return x <= y


@operator("Greater", types=NUMBERS)
def greater(b: Body, at: At, x: Term, y: Term) -> Term:
    """x > y."""
    return x > y


@operator("GreaterOrEqual", types=NUMBERS)
def greater_or_equal(b: Body, at: At, x: Term, y: Term) -> Term:
    """x ≥ y."""
    return x >= y


@operator("Equal", types=ANY)
def equal(b: Body, at: At, x: Term, y: Term) -> Term:
    """x = y."""
    return b.op("eq", x, y)


@operator("And", types=BOOL)
def logical_and(b: Body, at: At, x: Term, y: Term) -> Term:
    """Both."""
    return b.op("and", x, y)


@operator("Or", types=BOOL)
def logical_or(b: Body, at: At, x: Term, y: Term) -> Term:
    """One of them, or both."""
    return b.op("or", x, y)


@operator("Xor", types=BOOL)
def logical_xor(b: Body, at: At, x: Term, y: Term) -> Term:
    """One of them."""
    return b.op("xor", x, y)


@operator("Not", types=BOOL)
def logical_not(b: Body, at: At, x: Term) -> Term:
    """The other truth."""
    return b.op("not", x)


@operator("BitwiseAnd", types=INTEGERS)
def bitwise_and(b: Body, at: At, x: Term, y: Term) -> Term:
    """Bits that both have."""
    return b.op("and", x, y)


@operator("BitwiseOr", types=INTEGERS)
def bitwise_or(b: Body, at: At, x: Term, y: Term) -> Term:
    """Bits that one of them has."""
    return b.op("or", x, y)


@operator("BitwiseXor", types=INTEGERS)
def bitwise_xor(b: Body, at: At, x: Term, y: Term) -> Term:
    """Bits in which they differ."""
    return b.op("xor", x, y)


@operator("BitwiseNot", types=INTEGERS)
def bitwise_not(b: Body, at: At, x: Term) -> Term:
    """All other bits."""
    return b.op("xor", x, -1 if x.element.name != "U8" else 255)


@operator("Where", types=BOOL)
def where(b: Body, at: At, condition: Term, x: Term, y: Term) -> Term:
    """x where the condition holds, else y."""
    return b.select(condition, x, y)


@operator("IsNaN", types=FLOATS)
def is_nan(b: Body, at: At, x: Term) -> Term:
    """Whether it is no number."""
    return b.op("isnan", x)


@operator("IsInf", types=FLOATS)
def is_inf(b: Body, at: At, x: Term) -> Term:
    """Whether it is infinite, of the signs that are asked for."""
    found = b.op("isinf", x)
    if not at.attribute("detect_negative", 1):
        found = b.op("and", found, x > 0.0)
    if not at.attribute("detect_positive", 1):
        found = b.op("and", found, x < 0.0)
    return found
