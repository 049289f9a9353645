"""Determine whether the computation of a value may produce NaN from ordinary numbers.

onnxruntime (1.31) and kernels differ in reductions of a NaN by Max and Min. Over leading axes, onnxruntime
drops a NaN unless it is the first element. Over the last axis, the result depends on the position in a vector
register, and numbers before the NaN may also be dropped. A kernel returns NaN, as the specification requires.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from graphopt import ir
from graphopt.context import Context
from graphopt.fusion.operator_table import FLOATS, find, only_moves

#: Maximum number of visited values, and maximum depth of operands whose sign is determined.
_MOST, _DEPTH = 400, 8
_EXTREMA = frozenset({"ReduceMax", "ReduceMin"})
#: Operators with positive results, for numbers that neither overflow nor underflow.
_POSITIVE = frozenset({"Exp", "Sigmoid", "Softplus", "Softmax"})
_NONNEGATIVE = frozenset({"Abs", "Relu", "Sqrt", "HardSigmoid", "ReduceL1", "ReduceL2", "ReduceSumSquare"})
#: Operators whose results have the sign of their data, if all data have the same sign.
_KEEP_SIGN = frozenset(
    {"ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "Identity", "Cast"}
)
_JOIN_SIGNS = frozenset({"Concat", "Min", "Mul", "Div", "Mean", "Where"})


class Sign(IntEnum):
    """The sign of all elements of a value."""

    UNKNOWN = 0
    NONNEGATIVE = 1
    POSITIVE = 2


def reduces_nans(node: ir.Node, cx: Context) -> bool:
    """Whether ``node`` computes the maximum or minimum of floats that may be NaN for ordinary inputs."""
    value = node.inputs[0] if node.op_type in _EXTREMA and node.domain == "" else None
    return value is not None and _is_float(value, cx) and may_make_nan(value, cx)


def may_make_nan(value: ir.Value, cx: Context) -> bool:
    """Whether operators of kernels upstream of ``value`` may produce NaN from finite numbers.

    Overflow is not considered. Results of operators without kernels, such as products and convolutions,
    count as finite, because a NaN there spreads to every sum that contains it.
    """
    pending: list[ir.Value] = [value]
    visited = {value: None}
    while pending:
        node = pending.pop().producer()
        if node is None or find(node) is None or node.op_type in ("IsNaN", "IsInf"):
            continue
        if _is_float(node.outputs[0], cx) and _may_create_nan(node):
            return True
        for operand in node.inputs:
            if operand is not None and operand not in visited and len(visited) < _MOST:
                visited[operand] = None
                pending.append(operand)
    return False


def _may_create_nan(node: ir.Node) -> bool:
    """Whether finite numbers may become NaN in ``node`` itself."""
    match node.op_type, [value for value in node.inputs if value is not None]:
        case "Sqrt" | "Log", [x]:
            return sign_of(x) is Sign.UNKNOWN
        case "Pow", [x, exponent]:
            power = _constant(exponent)
            whole = power is not None and bool((power == np.trunc(power)).all())
            return not whole and sign_of(x) is Sign.UNKNOWN
        case (("Div" | "Mod"), [_, divisor]):
            number = _constant(divisor)
            nonzero = number is not None and bool((number != 0).all())
            return not nonzero and sign_of(divisor) is not Sign.POSITIVE
    return False


def sign_of(value: ir.Value, depth: int = _DEPTH) -> Sign:
    """The sign of all elements of ``value``, as far as operators and constants determine it."""
    number = _constant(value)
    if number is not None:
        return _sign(float(number.min())) if number.size and not np.isnan(number).any() else Sign.UNKNOWN
    node = value.producer()
    if node is None or node.domain != "" or not depth:
        return Sign.UNKNOWN
    operands = [operand for operand in node.inputs if operand is not None]
    if node.op_type in _POSITIVE:
        return Sign.POSITIVE

    def sign(index: int) -> Sign:
        return sign_of(operands[index], depth - 1) if index < len(operands) else Sign.UNKNOWN

    if node.op_type in _KEEP_SIGN or (only_moves(node) and node.op_type != "Concat"):
        return sign(0)
    if node.op_type == "Sqrt" and sign(0) is Sign.POSITIVE:
        return Sign.POSITIVE
    if node.op_type in _NONNEGATIVE:
        return Sign.NONNEGATIVE
    if node.op_type == "Mul" and operands[0] is operands[1]:
        return max(Sign.NONNEGATIVE, sign(0))
    if node.op_type == "Pow":
        power = _constant(operands[1])
        even = power is not None and bool((power % 2 == 0).all())
        return max(sign(0), Sign.NONNEGATIVE if even else Sign.UNKNOWN)
    if node.op_type in ("Add", "Sum"):
        signs = [sign(index) for index in range(len(operands))]
        return max(signs) if all(signs) else Sign.UNKNOWN
    if node.op_type == "Max":
        return max(sign(index) for index in range(len(operands)))
    if node.op_type == "Clip":
        least = node.attributes.get("min")
        bound = node.inputs[1] if len(node.inputs) > 1 else None
        low = _sign(least.as_float()) if least is not None else Sign.UNKNOWN
        return max(sign(0), low if bound is None else sign_of(bound, depth - 1))
    if node.op_type in _JOIN_SIGNS:
        first = 1 if node.op_type == "Where" else 0
        return min(sign(index) for index in range(first, len(operands)))
    return Sign.UNKNOWN


def _sign(number: float) -> Sign:
    return Sign.POSITIVE if number > 0 else Sign.NONNEGATIVE if number == 0 else Sign.UNKNOWN


def _constant(value: ir.Value) -> np.ndarray | None:
    """The numbers of a constant. The read is not recorded, because it only decides where nodes run."""
    tensor = ir.constant_of(value)
    number = None if tensor is None else tensor.numpy()
    return None if number is None or number.dtype.kind not in "fiu" else number


def _is_float(value: ir.Value, cx: Context) -> bool:
    dtype = cx.dtype(value)
    return dtype is not None and dtype.name in FLOATS
