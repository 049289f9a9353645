"""Sums, products, powers, roundings."""

from __future__ import annotations

from graphopt import ir
from graphopt.context import Context
from graphopt.fusion.loops.builder import Body, Term
from graphopt.fusion.loops.ir import Element
from graphopt.fusion.operator_table import FLOATS, INTEGERS, NUMBERS, At, operator, primitive

_UNSIGNED = frozenset({"UINT8"})
_LARGEST = {Element.F32: 3.4028234663852886e38, Element.F16: 65504.0, Element.BF16: 3.3895313892515355e38}


def _divides_safely(node: ir.Node, cx: Context) -> str | None:
    """Why an integer division may trap."""
    dtype = cx.dtype(node.outputs[0])
    if dtype is None or dtype.name not in INTEGERS:
        return None
    divisor = cx.constant(node.inputs[1])
    if divisor is None or divisor.size != 1 or int(divisor.reshape(-1)[0]) in (0, -1):
        return "it divides integers by what may be 0 or -1"
    return None


def _modulo_safely(node: ir.Node, cx: Context) -> str | None:
    fmod = node.attributes.get("fmod")
    dtype = cx.dtype(node.outputs[0])
    if fmod is not None and fmod.as_int() == 1 and dtype is not None and dtype.name not in FLOATS:
        return "fmod of integers is left to onnxruntime"
    return _divides_safely(node, cx)


def _power_of_floats(node: ir.Node, cx: Context) -> str | None:
    exponent = cx.dtype(node.inputs[1]) if node.inputs[1] is not None else None
    return (
        None if exponent is not None and exponent.name in NUMBERS else "the type of its exponent is unknown"
    )


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


@operator("Add", "Sum", types=NUMBERS)
def add(b: Body, at: At, *terms: Term) -> Term:
    """x + y, and further operands."""
    return b.total("add", terms)


@operator("Div", types=NUMBERS, accepts=_divides_safely)
def div(b: Body, at: At, x: Term, y: Term) -> Term:
    """x / y; of integers towards zero."""
    return x / y


@operator("Mod", types=NUMBERS, accepts=_modulo_safely)
def mod(b: Body, at: At, x: Term, y: Term) -> Term:
    """The rest of a division: with the divisor's sign of integers, with the dividend's of real numbers."""
    if x.element.is_float:
        return b.op("fmod", x, y)
    rest = b.op("mod", x, y)
    if x.element is Element.U8:
        return rest
    differ = b.op("and", b.op("not", b.op("eq", rest, 0)), b.op("xor", rest < 0, y < 0))
    return b.select(differ, rest + y, rest)


@operator("Mean", types=FLOATS)
def mean(b: Body, at: At, *terms: Term) -> Term:
    """(x + y + …) / n."""
    return b.total("add", terms) / float(len(terms))


@operator("Max", types=NUMBERS)
def maximum(b: Body, at: At, *terms: Term) -> Term:
    """The largest."""
    return b.total("max", terms)


@operator("Min", types=NUMBERS)
def minimum(b: Body, at: At, *terms: Term) -> Term:
    """The smallest."""
    return b.total("min", terms)


@operator("Neg", types=NUMBERS - _UNSIGNED)
def neg(b: Body, at: At, x: Term) -> Term:
    """−x."""
    return -x


@operator("Abs", types=NUMBERS)
def absolute(b: Body, at: At, x: Term) -> Term:
    """|x|."""
    return x if x.element is Element.U8 else b.op("abs", x)


@operator("Sign", types=NUMBERS)
def sign(b: Body, at: At, x: Term) -> Term:
    """−1, 0 or 1; of NaN NaN, but 0 in half precision, as onnxruntime has it."""
    positive = b.select(x > 0, b.constant(1, x.element), b.constant(0, x.element))
    if x.element is Element.U8:
        return positive
    found = b.select(x < 0, b.constant(-1, x.element), positive)
    return b.select(b.op("isnan", x), x, found) if at.element() is Element.F32 else found


@operator("Reciprocal")
def reciprocal(b: Body, at: At, x: Term) -> Term:
    """1 / x."""
    return 1.0 / x


@operator("Pow", types=FLOATS, accepts=_power_of_floats)
def power(b: Body, at: At, x: Term, y: Term) -> Term:
    """x to the power of y, by products and roots where y is a small constant."""
    exponent = at.cx.constant(at.node.inputs[1])
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
def clip(b: Body, at: At, x: Term, low: Term | None = None, high: Term | None = None) -> Term:
    """x, or the bound that it is beyond; bounds are attributes before opset 11, where all is real.

    A bound that is not there is the largest number, as onnxruntime has it: infinity is beyond it.
    """
    lowest: Term | float | None = low
    highest: Term | float | None = high
    if at.version < 11:
        lowest, highest = at.attribute("min"), at.attribute("max")
    if x.element.is_float:
        most = _LARGEST[at.element()]
        lowest, highest = -most if lowest is None else lowest, most if highest is None else highest
    found = x if lowest is None else b.op("max", lowest, x)  # of two zeros it is x
    return found if highest is None else b.op("min", highest, found)
