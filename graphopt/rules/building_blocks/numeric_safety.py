"""Conditions under which a rewrite keeps NaN, infinities and denormal numbers."""

from __future__ import annotations

import numpy as np

from graphopt import ir
from graphopt.numerics import Numerics
from graphopt.ops import traits
from graphopt.rewrite import Match


def may_approximate(m: Match) -> bool:
    """Whether the user allows approximate results, and overflow or underflow near the limits of the type."""
    return m.cx.options.numerics is Numerics.APPROXIMATES


#: Operators that move, compare, add, multiply or divide elements, so that scalar and vector code agree.
_PLACE_INDEPENDENT = frozenset(
    {
        "Abs", "Add", "And", "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "Ceil",
        "Concat", "DequantizeLinear", "Div", "Equal", "Floor", "Greater", "GreaterOrEqual", "Identity",
        "IsInf", "IsNaN", "Less", "LessOrEqual", "Mul", "Neg", "Not", "Or", "Pad", "Reciprocal", "Round",
        "Sign", "Slice", "Sqrt", "Sub", "Sum", "Xor",
    }
)  # fmt: skip
#: The same for integers and booleans. Max, Min and Where select between 0.0 and -0.0 by position.
_PLACE_INDEPENDENT_INTEGERS = frozenset({"Clip", "Max", "Min", "Mod", "Relu", "Where"})
#: The same for float and double, but not for half precision.
_PLACE_INDEPENDENT_FLOATS = frozenset({"Clip", "Relu"})


def depends_on_place(m: Match, node: ir.Node) -> bool:
    """Whether bits of an element of ``node`` may depend on its position in memory, or on broadcasting.

    onnxruntime (1.31) computes the last elements of a buffer by scalar code, which rounds differently for
    many functions. Its Pow has another kernel for an exponent of one element.
    """
    if node.domain != "":
        return True
    if node.op_type in _PLACE_INDEPENDENT:
        return False
    result = m.dtype(node.outputs[0])
    if node.op_type == "Cast":  # floats out of range are converted to integers differently
        first = m.dtype(node.inputs[0])
        return not (_is_exact(first) or result in (ir.DataType.FLOAT, ir.DataType.DOUBLE))
    if node.op_type in _PLACE_INDEPENDENT_INTEGERS and _is_exact(result):
        return False
    wide = result in (ir.DataType.FLOAT, ir.DataType.DOUBLE)
    return not (node.op_type in _PLACE_INDEPENDENT_FLOATS and wide)


def _is_exact(dtype: ir.DataType | None) -> bool:
    """Whether values of ``dtype`` are integers or booleans."""
    return dtype is not None and (dtype.is_integer() or dtype == ir.DataType.BOOL)


def is_integer_power(m: Match, node: ir.Node) -> bool:
    """Whether ``node`` may be a Pow of integers, whose overflow depends on how the exponent broadcasts."""
    dtype = m.dtype(node.outputs[0])
    return node.domain == "" and node.op_type == "Pow" and (dtype is None or not dtype.is_floating_point())


def is_finite(m: Match, value: ir.Value) -> bool:
    """Whether ``value`` is provably finite, because it is cast from integers."""
    node = computed_by(value)
    if node is None or node.domain or node.op_type != "Cast":
        return False
    source, target = m.dtype(node.inputs[0]), m.dtype(node.outputs[0])
    roomy = target in (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.BFLOAT16)
    return roomy and source is not None and (source.is_integer() or source == ir.DataType.BOOL)


#: Operators whose results are 0 or at least the root of the smallest denormal number.
_ROOTS = frozenset({"Sqrt", "ReduceL2"})
#: Operators whose results are never negative.
_NONNEGATIVE = frozenset(
    {
        "Abs",
        "Exp",
        "ReduceL1",
        "ReduceL2",
        "ReduceSumSquare",
        "Relu",
        "Sigmoid",
        "Softmax",
        "Softplus",
        "Sqrt",
    }
)
#: Operators whose results are sums or averages of their operands.
_SUMS = frozenset({"Add", "AveragePool", "GlobalAveragePool", "ReduceMean", "ReduceSum", "Sum"})


def rounds_long(m: Match, node: ir.Node) -> bool:
    """Whether ``node`` is a mean of 64-bit integers, which onnxruntime and numpy compute in double.

    The rounding of the sum depends on the order of the elements, and even a single element is rounded.
    """
    dtype = m.dtype(node.inputs[0])
    return node.op_type == "ReduceMean" and (dtype is None or (dtype.is_integer() and dtype.itemsize == 8))


def never_denormal(m: Match, value: ir.Value) -> bool:
    """Whether no element of ``value`` is denormal, for all inputs of the model."""
    node = computed_by(value)
    if node is None or node.domain != "":
        return _least(m, value) is not None
    if node.op_type in _ROOTS:
        return True
    if node.op_type == "Cast":
        dtype = m.dtype(node.inputs[0])
        return dtype is not None and (dtype.is_integer() or dtype == ir.DataType.BOOL)
    operands = [operand for operand in node.inputs if operand is not None]
    if node.op_type == "Max":
        return any((least := _least(m, operand)) is not None and least > 0 for operand in operands)
    if node.op_type == "Clip" and len(operands) > 1 and node.inputs[1] is not None:
        least = _least(m, node.inputs[1])
        return least is not None and least > 0
    if node.op_type == "Add":
        positive = [(least := _least(m, operand)) is not None and least > 0 for operand in operands]
        return any(positive) and all(
            sure or _nonnegative(m, operand) for sure, operand in zip(positive, operands, strict=True)
        )
    return _least(m, value) is not None


def computed_by(value: ir.Value) -> ir.Node | None:
    """The node that computes the elements of ``value``, before any views."""
    node = value.producer()
    while node is not None and node.domain == "" and node.op_type in traits.VIEW:
        node = None if node.inputs[0] is None else node.inputs[0].producer()
    return node


def _least(m: Match, value: ir.Value) -> float | None:
    """The minimum element of a constant without denormal elements; ``None`` for other values."""
    number = m.constant(value)
    if number is None or number.dtype.kind != "f" or number.size == 0:
        return None
    normal = np.abs(number) >= np.finfo(number.dtype).tiny
    return float(number.min()) if bool((normal | (number == 0)).all()) else None


def _nonnegative(m: Match, value: ir.Value, depth: int = 4) -> bool:
    """Whether no element of ``value`` is negative."""
    node = computed_by(value)
    if node is None or node.domain != "":
        least = _least(m, value)
        return least is not None and least >= 0
    if node.op_type in _NONNEGATIVE:
        return True
    operands = [operand for operand in node.inputs if operand is not None]
    if node.op_type == "Mul" and len(operands) == 2 and operands[0] is operands[1]:
        return True
    if node.op_type == "Pow":
        exponent = m.constant(operands[1])
        return exponent is not None and bool((exponent % 2 == 0).all())
    if node.op_type in _SUMS and depth:
        data = operands if node.op_type in ("Add", "Sum") else operands[:1]
        return all(_nonnegative(m, operand, depth - 1) for operand in data)
    return False
