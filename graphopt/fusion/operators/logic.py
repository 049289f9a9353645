"""Comparisons, boolean and bitwise logic, selection."""

from __future__ import annotations

from graphopt.fusion.loops.builder import Expr, IRBuilder
from graphopt.fusion.operator_table import (
    ANY,
    BOOL,
    FLOATS,
    INTEGERS,
    NUMBERS,
    EmitContext,
    operator,
    primitive,
)

less = primitive("lt", "Less", types=NUMBERS)
less_or_equal = primitive("le", "LessOrEqual", types=NUMBERS)
equal = primitive("eq", "Equal", types=ANY)
logical_and = primitive("and", "And", types=BOOL)
logical_or = primitive("or", "Or", types=BOOL)
logical_xor = primitive("xor", "Xor", types=BOOL)
logical_not = primitive("not", "Not", types=BOOL)
bitwise_and = primitive("and", "BitwiseAnd", types=INTEGERS)
bitwise_or = primitive("or", "BitwiseOr", types=INTEGERS)
bitwise_xor = primitive("xor", "BitwiseXor", types=INTEGERS)
is_nan = primitive("isnan", "IsNaN")


@operator("Greater", types=NUMBERS)
def greater(b: IRBuilder, ctx: EmitContext, x: Expr, y: Expr) -> Expr:
    """x > y."""
    return x > y


@operator("GreaterOrEqual", types=NUMBERS)
def greater_or_equal(b: IRBuilder, ctx: EmitContext, x: Expr, y: Expr) -> Expr:
    """x ≥ y."""
    return x >= y


@operator("BitwiseNot", types=INTEGERS)
def bitwise_not(b: IRBuilder, ctx: EmitContext, x: Expr) -> Expr:
    """~x."""
    return b.op("xor", x, -1 if x.element.name != "U8" else 255)


@operator("Where", types=BOOL)
def where(b: IRBuilder, ctx: EmitContext, condition: Expr, x: Expr, y: Expr) -> Expr:
    """condition ? x : y."""
    return b.select(condition, x, y)


@operator("IsInf", types=FLOATS)
def is_inf(b: IRBuilder, ctx: EmitContext, x: Expr) -> Expr:
    """Whether x is infinite, with one of the signs given by attributes."""
    found = b.op("isinf", x)
    if not ctx.attribute("detect_negative", 1):
        found = b.op("and", found, x > 0.0)
    if not ctx.attribute("detect_positive", 1):
        found = b.op("and", found, x < 0.0)
    return found
