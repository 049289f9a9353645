"""Instructions as C expressions over vectors."""

from __future__ import annotations

from dataclasses import replace
from math import frexp, inf, isinf, isnan

from graphopt.fusion.backends.c.preamble import Lanes
from graphopt.fusion.loops.instructions import OPS
from graphopt.fusion.loops.ir import Element, Instruction, single
from graphopt.util.lazy_dataclass import dataclass

#: Vector types in C, without suffix; that of a bool depends on the compared type.
NAMES = {Element.F32: "f32", Element.I8: "i8", Element.U8: "u8", Element.I32: "i32", Element.I64: "i64"}
_MASKS = {1: "i8", 4: "i32", 8: "i64"}


@dataclass(frozen=True)
class Value:
    """The result of an instruction.

    Attributes:
        code: a C expression without side effects.
        width: size of an element in bytes; for a bool, the size of its mask.
        number: the value of a constant other than NaN.
    """

    code: str
    element: Element
    width: int
    number: float | None = None

    @property
    def vector(self) -> str:
        """The vector type, without suffix."""
        return _MASKS[self.width] if self.element is Element.BOOL else NAMES[self.element]


class VectorExpressions:
    """C expressions for one number of lanes."""

    def __init__(self, lanes: Lanes) -> None:
        self.end = f"_{lanes.value}"
        self.lanes = lanes

    def value(self, step: Instruction, args: list[Value]) -> Value:
        """The result of ``step``, which is not a load, reduction or extent."""
        if step.op == "constant":
            found = self.constant(step.element, step.value)
            return replace(found, number=step.value if step.value == step.value else None)
        if step.op == "cast":
            return self._cast(args[0], step.element)
        if step.op == "select":
            return self._select(*args)
        if args[0].element is Element.BOOL:
            return self._logic(step, args)
        return self._arithmetic(step, args)

    def splat(self, element: Element, code: str) -> Value:
        """A number in all lanes."""
        return Value(f"splat_{NAMES[element]}{self.end}({code})", element, element.bytes)

    def constant(self, element: Element, value: float | int | bool | None) -> Value:
        """``value`` in all lanes."""
        if element is Element.BOOL:
            width = self.lanes.width
            return Value(f"splat_{_MASKS[width]}{self.end}({-1 if value else 0})", element, width)
        if element is Element.F32:
            return self.splat(element, float_literal(0.0 if value is None else float(value)))  # -0.0 stays
        return self.splat(element, int_literal(int(value or 0)))

    def mask(self, value: Value, width: int) -> str:
        """A mask with elements of ``width`` bytes."""
        if value.width == width:
            return value.code
        return f"{_MASKS[value.width]}_to_{_MASKS[width]}{self.end}({value.code})"

    def first(self, width: int, count: str) -> str:
        """The mask of the first ``count`` lanes."""
        return f"first_{_MASKS[width]}{self.end}({count})"

    def pick(self, mask: str, yes: Value, no: Value) -> Value:
        """``mask ? yes : no``, all of the same width."""
        return Value(f"select_{yes.vector}{self.end}({mask}, {yes.code}, {no.code})", yes.element, yes.width)

    def combine(self, op: str, a: Value, b: Value) -> Value:
        """One step of a reduction: ``op`` is sum, prod, min or max."""
        if a.element is Element.BOOL:
            sign = "|" if op in ("max", "sum") else "&"
            return Value(f"({a.code} {sign} {b.code})", a.element, a.width)
        if op in ("sum", "prod"):
            return Value(f"({a.code} {'+' if op == 'sum' else '*'} {b.code})", a.element, a.width)
        return Value(f"{op}_{a.vector}{self.end}({a.code}, {b.code})", a.element, a.width)

    def across(self, op: str, value: Value) -> Value:
        """The reduction over all lanes; every lane contains the result."""
        if value.element is Element.BOOL:
            # true is -1, false is 0: the minimum is "any"
            op = "min" if op in ("max", "sum") else "max"
        return Value(f"{op}_across_{value.vector}{self.end}({value.code})", value.element, value.width)

    def identity(self, op: str, like: Value) -> Value:
        """The identity element of a reduction."""
        element = like.element
        if element is Element.BOOL:
            return Value(
                f"splat_{like.vector}{self.end}({0 if op in ('max', 'sum') else -1})", element, like.width
            )
        if op in ("sum", "prod"):
            return self.constant(element, int(op == "prod"))
        if element is Element.F32:
            return self.constant(element, -inf if op == "max" else inf)
        lowest, highest = _RANGES[element]
        return self.constant(element, lowest if op == "max" else highest)

    def _arithmetic(self, step: Instruction, args: list[Value]) -> Value:
        op, first = OPS[step.op], args[0]
        element, end = first.element, self.end
        if step.op in ("min", "max") and element.is_float:
            return self._bounded(step.op, *args)
        if step.op == "div" and element.is_float and _may_invert(args[1].number):
            assert args[1].number is not None
            inverse = self.splat(element, float_literal(1 / single(args[1].number)))
            return Value(f"div_by{end}({first.code}, {args[1].code}, {inverse.code})", element, first.width)
        if step.into is not None:
            return Value(f"round_{step.into.name.lower()}{end}({first.code})", element, first.width)
        template = op.c if element.is_float or op.ints is None else op.ints
        assert template is not None
        names = {"end": end, "type": NAMES[element], "mask": _MASKS[first.width]}
        code = template.format(*(arg.code for arg in args), **names)
        return Value(code, Element.BOOL if op.predicate else element, first.width)

    def _bounded(self, op: str, a: Value, b: Value) -> Value:
        """The minimum or maximum of floats; of two zeros, the second operand.

        If the first operand is a constant, a comparison propagates NaN without a further check.
        """
        if b.number:  # not 0
            a, b = b, a
        name = f"{op}_f32" if a.number is None else {"min": "less", "max": "more"}[op]
        return Value(f"{name}{self.end}({a.code}, {b.code})", Element.F32, 4)

    def _logic(self, step: Instruction, args: list[Value]) -> Value:
        width, template = args[0].width, OPS[step.op].bools
        assert template is not None
        return Value(template.format(*(self.mask(arg, width) for arg in args)), Element.BOOL, width)

    def _select(self, condition: Value, yes: Value, no: Value) -> Value:
        if yes.element is Element.BOOL:
            width = condition.width
            yes, no = (Value(self.mask(value, width), Element.BOOL, width) for value in (yes, no))
        return self.pick(self.mask(condition, yes.width), yes, no)

    def _cast(self, value: Value, element: Element) -> Value:
        if value.element is element:
            return value
        if element is Element.BOOL:
            mask = f"({_MASKS[value.width]}{self.end})"
            return Value(f"{mask}({value.code} != 0)", element, value.width)
        name = NAMES[element]
        if value.element is Element.BOOL:
            mask = self.mask(value, element.bytes)
            one = "0x3f800000" if element is Element.F32 else "1"
            return Value(f"(({name}{self.end})({mask} & {one}))", element, element.bytes)
        return Value(f"{NAMES[value.element]}_to_{name}{self.end}({value.code})", element, element.bytes)


_RANGES = {
    Element.I8: (-(2**7), 2**7 - 1),
    Element.U8: (0, 2**8 - 1),
    Element.I32: (-(2**31), 2**31 - 1),
    Element.I64: (-(2**63), 2**63 - 1),
}


def float_literal(value: float) -> str:
    """The C literal of the nearest number of single precision."""
    if isnan(value):
        return '__builtin_nanf("")'
    value = single(value)
    if isinf(value):
        return "__builtin_inff()" if value > 0 else "-__builtin_inff()"
    return f"{value.hex()}f"


def _may_invert(divisor: float | None) -> bool:
    """Whether ``div_by`` of machine.h supports the divisor; powers of two don't need ``div_by``."""
    if divisor is None:
        return False
    mantissa = abs(frexp(single(divisor))[0])
    return 2.0**-100 < abs(divisor) < 2.0**100 and mantissa not in (0.5, 1 - 2.0**-24)


def int_literal(value: int) -> str:
    """The C literal of an integer."""
    if value == -(2**63):
        return "(-9223372036854775807LL - 1)"
    return f"{value}LL" if abs(value) >= 2**31 else str(value)
