"""Expressions of instructions in device code."""

from __future__ import annotations

import pytest

from graphopt.fusion.backends.cuda import expressions
from graphopt.fusion.backends.cuda.expressions import Value
from graphopt.fusion.loops.instructions import OPS
from graphopt.fusion.loops.ir import Element, Instruction

#: Instructions with operands other than earlier values.
_OTHERS = ("load", "constant", "extent", "cast", "round", "select")

_BITWISE = ("and", "or", "xor", "not")
#: Instructions with one C expression for floats and integers.
_SAME = ("add", "sub", "mul", "neg", "lt", "le", "eq")


def code(op: str, element: Element) -> str:
    args = [Value(name, element) for name in "abc"]
    return expressions.value(Instruction(op, element), args).code


@pytest.mark.parametrize("op", [op for op in OPS if op not in _OTHERS and not op.startswith("reduce_")])
def test_each_instruction_has_expressions_for_the_types_of_the_table(op: str) -> None:
    entry = OPS[op]
    if entry.c is not None and op not in _BITWISE:
        assert code(op, Element.F32)
    if entry.ints is not None or op in (*_BITWISE, *_SAME):
        assert code(op, Element.I8) and code(op, Element.I64)
    if entry.bools is not None:
        assert code(op, Element.BOOL)


@pytest.mark.parametrize("op", ["sum", "prod", "min", "max"])
@pytest.mark.parametrize("element", list(expressions.REGISTERS), ids=lambda element: element.name)
def test_each_reduction_has_a_step_and_an_identity(op: str, element: Element) -> None:
    assert expressions.combine(op, Value("a", element), Value("b", element)).code
    assert expressions.identity(op, element).code


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.0, "0x0.0p+0f"),
        (-0.0, "(-0x0.0p+0f)"),
        (-1.5, "(-0x1.8000000000000p+0f)"),
        (float("inf"), "GO_INFINITY"),
        (float("-inf"), "(-GO_INFINITY)"),
        (float("nan"), "GO_NAN"),
        (1e300, "GO_INFINITY"),
    ],
)
def test_literals_of_floats(number: float, text: str) -> None:
    assert expressions.literal(Element.F32, number) == text


def test_literals_of_integers() -> None:
    assert expressions.literal(Element.I64, -(2**63)) == "(i64)((-9223372036854775807 - 1))"
    assert expressions.literal(Element.U8, 255) == "(u8)255"
    assert expressions.literal(Element.BOOL, True) == "true"
