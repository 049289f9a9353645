"""Instructions as expressions of one element, in the C that all dialects share.

Integers are computed as unsigned numbers of at least 32 bits, because the overflow of signed numbers is
undefined in C.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isinf, isnan

from graphopt.fusion.loops.ir import Element, Instruction, single
from graphopt.util.lazy_dataclass import dataclass

#: Types of values in registers.
REGISTERS = {
    Element.F32: "f32", Element.I8: "i8", Element.U8: "u8", Element.I32: "i32", Element.I64: "i64",
    Element.BOOL: "bool",
}  # fmt: skip
#: Types of elements in memory.
MEMORY = {
    **REGISTERS, Element.BOOL: "u8", Element.F16: "u16", Element.BF16: "u16",
}  # fmt: skip

#: Bytes of a type of elements in memory.
SIZES = {name: element.bytes for element, name in MEMORY.items()}

_COMPARISONS = {"lt": "({0} < {1})", "le": "({0} <= {1})", "eq": "({0} == {1})"}
_FUNCTIONS = (
    "sqrt", "exp", "log", "tanh", "sigmoid", "erf", "sin", "cos", "floor", "ceil", "round_even", "trunc",
)  # fmt: skip
_FLOATS = {
    "add": "({0} + {1})", "sub": "({0} - {1})", "mul": "({0} * {1})", "div": "({0} / {1})",
    "min": "go_min_f32({0}, {1})", "max": "go_max_f32({0}, {1})", "neg": "(-{0})", "abs": "go_abs_f32({0})",
    "fmod": "go_fmod({0}, {1})", "pow": "go_pow({0}, {1})",
    **{name: f"go_{name}({{0}})" for name in _FUNCTIONS},
    "isnan": "({0} != {0})",
    "isinf": "(go_abs_f32({0}) == GO_INFINITY)",
    **_COMPARISONS,
}  # fmt: skip
_INTS = {
    "add": "({t})(({u}){0} + ({u}){1})", "sub": "({t})(({u}){0} - ({u}){1})",
    "mul": "({t})(({u}){0} * ({u}){1})", "neg": "({t})(({u})0 - ({u}){0})",
    **{name: f"go_{name}_{{t}}({{0}}, {{1}})" for name in ("div", "mod", "min", "max", "pow", "shl", "shr")},
    "abs": "go_abs_{t}({0})", **dict.fromkeys(("floor", "ceil", "round_even", "trunc"), "{0}"),
    "and": "({t})({0} & {1})", "or": "({t})({0} | {1})", "xor": "({t})({0} ^ {1})", "not": "({t})(~{0})",
    **_COMPARISONS,
}  # fmt: skip
_BOOLS = {
    **dict.fromkeys(("add", "max", "or"), "({0} || {1})"),
    **dict.fromkeys(("mul", "min", "and"), "({0} && {1})"), "xor": "({0} != {1})", "eq": "({0} == {1})",
    "lt": "(!{0} && {1})", "le": "(!{0} || {1})", "not": "(!{0})",
}  # fmt: skip


@dataclass(frozen=True)
class Value:
    """The result of an instruction: a C expression without side effects."""

    code: str
    element: Element

    @property
    def type(self) -> str:
        """Its type."""
        return REGISTERS[self.element]


def value(step: Instruction, args: Sequence[Value]) -> Value:
    """The result of ``step``, an instruction other than a load, reduction or extent."""
    if step.op == "constant":
        return Value(literal(step.element, step.value), step.element)
    if step.op == "cast":
        return Value(_cast(args[0], step.element), step.element)
    codes = [arg.code for arg in args]
    if step.op == "select":
        condition, yes, no = codes
        return Value(f"({condition} ? {yes} : {no})", step.element)
    if step.into is not None:
        return Value(f"go_round_{step.into.name.lower()}({codes[0]})", step.element)
    return Value(_operation(step.op, args[0].element, codes), step.element)


def combine(op: str, a: Value, b: Value) -> Value:
    """One step of a reduction: ``op`` is sum, prod, min or max."""
    name = {"sum": "add", "prod": "mul"}.get(op, op)
    return Value(_operation(name, a.element, [a.code, b.code]), a.element)


def identity(op: str, element: Element) -> Value:
    """The identity element of a reduction."""
    if element is Element.BOOL:
        return Value(literal(element, op not in ("max", "sum")), element)
    if op in ("sum", "prod"):
        return Value(literal(element, int(op == "prod")), element)
    if element is Element.F32:
        return Value(literal(element, -inf if op == "max" else inf), element)
    bits = 8 * element.bytes
    lowest, highest = (0, 255) if element is Element.U8 else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return Value(literal(element, lowest if op == "max" else highest), element)


def literal(element: Element, number: float | int | bool | None) -> str:
    """A literal of a register type."""
    if element is Element.F32:
        return _float_literal(0.0 if number is None else float(number))
    if element is Element.BOOL:
        return "true" if number else "false"
    found = int(number or 0)
    code = "(-9223372036854775807 - 1)" if found == -(2**63) else str(found)
    return f"({REGISTERS[element]}){code}" if found >= 0 else f"({REGISTERS[element]})({code})"


def loaded(memory: Element, code: str) -> Value:
    """The element ``code`` of a tensor, in a register."""
    if memory in (Element.F16, Element.BF16):
        return Value(f"go_from_{memory.name.lower()}({code})", Element.F32)
    return Value(f"({code} != 0)" if memory is Element.BOOL else code, memory)


def stored(memory: Element, result: Value) -> str:
    """``result``, converted to an element of a tensor."""
    if memory in (Element.F16, Element.BF16):
        return f"go_to_{memory.name.lower()}({result.code})"
    return f"(u8)({result.code} ? 1 : 0)" if memory is Element.BOOL else result.code


def _operation(op: str, element: Element, codes: list[str]) -> str:
    table = _FLOATS if element.is_float else _BOOLS if element is Element.BOOL else _INTS
    unsigned = "u64" if element is Element.I64 else "u32"
    return table[op].format(*codes, t=REGISTERS[element], u=unsigned)


def _cast(term: Value, element: Element) -> str:
    if term.element is element:
        return term.code
    if element is Element.BOOL:
        return f"({term.code} != 0)"
    name = REGISTERS[element]
    if term.element is Element.BOOL:
        return f"({name})({term.code} ? 1 : 0)"
    through = "(i32)" if term.element is Element.F32 and element.bytes == 1 else ""
    return f"({name}){through}{term.code}"


def _float_literal(number: float) -> str:
    if isnan(number):
        return "GO_NAN"
    number = single(number)
    if isinf(number):
        return "GO_INFINITY" if number > 0 else "(-GO_INFINITY)"
    return f"{number.hex()}f" if number > 0 or str(number) == "0.0" else f"(-{abs(number).hex()}f)"
