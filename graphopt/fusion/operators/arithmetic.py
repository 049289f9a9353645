"""Arithmetic, powers, extrema and rounding."""

from __future__ import annotations

from graphopt import ir
from graphopt.context import Context
from graphopt.fusion.loops.builder import Expr, IRBuilder
from graphopt.fusion.loops.ir import Element
from graphopt.fusion.operator_table import (
    FLOATS,
    INTEGERS,
    NUMBERS,
    EmitContext,
    Operator,
    operator,
    primitive,
)

_UNSIGNED = frozenset({"UINT8"})
_LARGEST = {Element.F32: 3.4028234663852886e38, Element.F16: 65504.0, Element.BF16: 3.3895313892515355e38}


def _trap_reason(node: ir.Node, cx: Context) -> str | None:
    """The reason if an integer division may trap."""
    dtype = cx.dtype(node.outputs[0])
    if dtype is None or dtype.name not in INTEGERS:
        return None
    divisor = cx.constant(node.inputs[1])
    if divisor is None or divisor.size != 1 or int(divisor.reshape(-1)[0]) in (0, -1):
        return "the divisor of integers may be 0 or -1"
    return None


def _unsupported_modulo(node: ir.Node, cx: Context) -> str | None:
    fmod = node.attributes.get("fmod")
    dtype = cx.dtype(node.outputs[0])
    if fmod is not None and fmod.as_int() == 1 and dtype is not None and dtype.name not in FLOATS:
        return "fmod of integers is left to onnxruntime"
    return _trap_reason(node, cx)


def _unsupported_power(node: ir.Node, cx: Context) -> str | None:
    exponent = cx.dtype(node.inputs[1]) if node.inputs[1] is not None else None
    if exponent is None or exponent.name not in NUMBERS:
        return "the type of its exponent is unknown"
    return None


sub = primitive("sub", "Sub", types=NUMBERS)
mul = primitive("mul", "Mul", types=NUMBERS)
sqrt = primitive("sqrt", "Sqrt")
exp = primitive("exp", "Exp")
log = primitive("log", "Log")
sin = primitive("sin", "Sin")
cos = primitive("cos", "Cos")
erf = primitive("erf", "Erf")
floor = primitive("floor", "Floor")
ceil = primitive("ceil", "Ceil")
round_even = primitive("round_even", "Round")
neg = primitive("neg", "Neg", types=NUMBERS - _UNSIGNED)


def _fold(name: str, *ops: str) -> Operator:
    """Define ``ops`` as the instruction ``name`` applied to all operands from left to right."""
    return operator(*ops, types=NUMBERS)(lambda b, ctx, *operands: b.fold(name, operands))


add = _fold("add", "Add", "Sum")
maximum = _fold("max", "Max")
minimum = _fold("min", "Min")


@operator("Div", types=NUMBERS, refuses=_trap_reason)
def div(b: IRBuilder, ctx: EmitContext, x: Expr, y: Expr) -> Expr:
    """x / y; integers are divided towards zero."""
    return x / y


@operator("Mod", types=NUMBERS, refuses=_unsupported_modulo)
def mod(b: IRBuilder, ctx: EmitContext, x: Expr, y: Expr) -> Expr:
    """The remainder, with the sign of the divisor for integers, of the dividend for floats."""
    if x.element.is_float:
        return b.op("fmod", x, y)
    rest = b.op("mod", x, y)
    if x.element is Element.U8:
        return rest
    differ = b.op("and", b.op("not", b.op("eq", rest, 0)), b.op("xor", rest < 0, y < 0))
    return b.select(differ, rest + y, rest)


@operator("Mean", types=FLOATS)
def mean(b: IRBuilder, ctx: EmitContext, *operands: Expr) -> Expr:
    """(x + y + …) / n."""
    return b.fold("add", operands) / float(len(operands))


@operator("Abs", types=NUMBERS)
def absolute(b: IRBuilder, ctx: EmitContext, x: Expr) -> Expr:
    """|x|."""
    return x if x.element is Element.U8 else b.op("abs", x)


@operator("Sign", types=NUMBERS)
def sign(b: IRBuilder, ctx: EmitContext, x: Expr) -> Expr:
    """−1, 0 or 1; for NaN, NaN in single and 0 in half precision, like onnxruntime."""
    positive = b.select(x > 0, b.constant(1, x.element), b.constant(0, x.element))
    if x.element is Element.U8:
        return positive
    found = b.select(x < 0, b.constant(-1, x.element), positive)
    return b.select(b.op("isnan", x), x, found) if ctx.element() is Element.F32 else found


@operator("Reciprocal")
def reciprocal(b: IRBuilder, ctx: EmitContext, x: Expr) -> Expr:
    """1 / x."""
    return 1.0 / x


@operator("Pow", types=FLOATS, refuses=_unsupported_power)
def power(b: IRBuilder, ctx: EmitContext, x: Expr, y: Expr) -> Expr:
    """xʸ; products or a reciprocal for the constants −1, 1, 2 and 3."""
    exponent = ctx.cx.constant(ctx.node.inputs[1])
    if exponent is not None and exponent.size == 1:
        known = float(exponent.reshape(-1)[0])
        if known == 1.0:
            return x
        if known == 2.0:
            return x * x
        if known == 3.0:
            return x * x * x
        if known == -1.0:
            return 1.0 / x
    return b.op("pow", x, b.cast(y, Element.F32))


@operator("Clip", types=NUMBERS)
def clip(b: IRBuilder, ctx: EmitContext, x: Expr, low: Expr | None = None, high: Expr | None = None) -> Expr:
    """min(max(low, x), high); before opset 11, the bounds are attributes, and x is a float.

    Like in onnxruntime, an omitted bound of floats is the largest finite number, so infinity is clipped.
    """
    lowest: Expr | float | None = low
    highest: Expr | float | None = high
    if ctx.version < 11:
        lowest, highest = ctx.attribute("min"), ctx.attribute("max")
    if x.element.is_float:
        most = _LARGEST[ctx.element()]
        lowest, highest = -most if lowest is None else lowest, most if highest is None else highest
    found = x if lowest is None else b.op("max", lowest, x)  # x if both are zeros
    return found if highest is None else b.op("min", highest, found)
