"""Operators whose bits depend on the position of an element in memory, or on broadcasting."""

from __future__ import annotations

from collections.abc import Iterable

from graphopt import ir
from graphopt.rewrite import Match
from graphopt.rules.building_blocks.element_type_sets import is_integer_or_bool

#: Operators that move, compare, add, multiply or divide elements, so that scalar and vector code agree.
_POSITION_INDEPENDENT = frozenset(
    {
        "Abs", "Add", "And", "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "Ceil",
        "Concat", "DequantizeLinear", "Div", "Equal", "Floor", "Greater", "GreaterOrEqual", "Identity",
        "IsInf", "IsNaN", "Less", "LessOrEqual", "Mul", "Neg", "Not", "Or", "Pad", "Reciprocal", "Round",
        "Sign", "Slice", "Sqrt", "Sub", "Sum", "Xor",
    }
)  # fmt: skip
#: The same for integers and booleans. Max, Min and Where select between 0.0 and -0.0 by position.
_POSITION_INDEPENDENT_INTEGERS = frozenset({"Clip", "Max", "Min", "Mod", "Relu", "Where"})
#: The same for float and double, but not for half precision.
_POSITION_INDEPENDENT_FLOATS = frozenset({"Clip", "Relu"})


def depends_on_position(m: Match, node: ir.Node) -> bool:
    """Whether bits of an element of ``node`` may depend on its position in memory, or on broadcasting.

    onnxruntime (1.31) computes the last elements of a buffer by scalar code, which rounds differently for
    many functions. Its Pow has another kernel for an exponent of one element.
    """
    if node.domain != "":
        return True
    if node.op_type in _POSITION_INDEPENDENT:
        return False
    result = m.dtype(node.outputs[0])
    if node.op_type == "Cast":  # floats out of range are converted to integers differently
        first = m.dtype(node.inputs[0])
        return not (is_integer_or_bool(first) or result in (ir.DataType.FLOAT, ir.DataType.DOUBLE))
    if node.op_type in _POSITION_INDEPENDENT_INTEGERS and is_integer_or_bool(result):
        return False
    wide = result in (ir.DataType.FLOAT, ir.DataType.DOUBLE)
    return not (node.op_type in _POSITION_INDEPENDENT_FLOATS and wide)


def sometimes_dependent(op_types: Iterable[str]) -> tuple[str, ...]:
    """Those of ``op_types`` whose bits depend on the position for some element types."""
    return tuple(op_type for op_type in op_types if op_type not in _POSITION_INDEPENDENT)


def is_integer_power(m: Match, node: ir.Node) -> bool:
    """Whether ``node`` may be a Pow of integers, whose overflow depends on how the exponent broadcasts."""
    dtype = m.dtype(node.outputs[0])
    return node.domain == "" and node.op_type == "Pow" and (dtype is None or not dtype.is_floating_point())
