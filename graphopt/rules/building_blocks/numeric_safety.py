"""Conditions under which a rewrite keeps NaN and infinities, or may change them."""

from __future__ import annotations

from graphopt import ir
from graphopt.numerics import Numerics
from graphopt.rewrite import Match
from graphopt.rules.building_blocks.element_type_sets import is_integer_or_bool
from graphopt.rules.building_blocks.operands import computed_by


def may_approximate(m: Match) -> bool:
    """Whether the user allows approximate results, and overflow or underflow near the limits of the type."""
    return m.cx.options.numerics is Numerics.APPROXIMATES


def is_finite(m: Match, value: ir.Value) -> bool:
    """Whether ``value`` is provably finite, because it is cast from integers."""
    node = computed_by(value)
    if node is None or node.domain or node.op_type != "Cast":
        return False
    source, target = m.dtype(node.inputs[0]), m.dtype(node.outputs[0])
    roomy = target in (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.BFLOAT16)
    return roomy and is_integer_or_bool(source)


#: Reason to refuse a rewrite of a node that :func:`rounds_long`.
ROUNDED_SUM = "onnxruntime rounds sums of 64-bit integers to double"


def rounds_long(m: Match, node: ir.Node) -> bool:
    """Whether ``node`` is a sum or a mean of 64-bit integers, which onnxruntime (1.31) computes in double.

    The rounding of the sum depends on the order of the elements, and even a single element is rounded.
    """
    dtype = m.dtype(node.inputs[0])
    is_long = dtype is None or (dtype.is_integer() and dtype.itemsize == 8)
    return node.op_type in ("ReduceMean", "ReduceSum", "Einsum") and is_long
