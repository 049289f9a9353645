"""Elementwise operators of one input, and other operators that preserve its shape."""

from __future__ import annotations

from graphopt import ir
from graphopt.analysis.shape_inference.node_facts import NodeFacts, shape_rule
from graphopt.analysis.shape_inference.value_facts import (
    ABSENT,
    INTEGER_RANGES,
    UNKNOWN,
    Contents,
    Fact,
    representable,
)
from graphopt.analysis.symbolic import Dim, bounds, dim_max


@shape_rule(
    *("Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "BitwiseNot", "Ceil", "Celu"),
    *("Clip", "Cos", "Cosh", "CumSum", "CumProd", "Elu", "Erf", "Exp", "Floor", "Gelu"),
    *("HardSigmoid", "HardSwish", "Hardmax", "LeakyRelu", "Log", "LogSoftmax", "Mish", "Neg"),
    *("Reciprocal", "Relu", "Round", "Selu", "Shrink", "Sigmoid", "Sign", "Sin", "Sinh", "Softmax"),
    *("Softplus", "Softsign", "Sqrt", "Swish", "Tan", "Tanh", "ThresholdedRelu", "Trilu"),
)
def unary(node: NodeFacts) -> Fact:
    """Shape and dtype of the first input."""
    result = node.like(0)
    contents = node.contents(0)
    if contents is not None and result.dtype is not None:
        computed = _unary_contents(node.ir.op_type, contents)
        # the negative of the smallest integer is not representable
        if computed is not None and all(representable(dim, result.dtype) for dim in computed):
            result.contents = computed
    return result


def _unary_contents(op_type: str, contents: Contents) -> Contents | None:
    if op_type == "Neg":
        return tuple(-dim for dim in contents)
    if op_type == "Abs":
        return tuple(dim_max(dim, -dim) for dim in contents)
    if op_type == "Relu":
        return tuple(dim_max(dim, 0) for dim in contents)
    return None


@shape_rule("IsInf", "IsNaN")
def predicate(node: NodeFacts) -> Fact:
    return node.like(0, ir.DataType.BOOL)


@shape_rule("Not")
def logical_not(node: NodeFacts) -> Fact:
    result = node.like(0, ir.DataType.BOOL)
    contents = node.contents(0)
    if contents is not None:
        result.contents = tuple(1 - dim for dim in contents)
    return result


@shape_rule("Identity")
def identity(node: NodeFacts) -> Fact:
    fact = node.fact(0)
    return UNKNOWN if fact is ABSENT else fact


@shape_rule("Cast")
def cast(node: NodeFacts) -> Fact:
    return _cast(node, ir.DataType(node.attr_int("to", 0)))


@shape_rule("CastLike")
def cast_like(node: NodeFacts) -> Fact:
    return _cast(node, node.dtype(1))


def _cast(node: NodeFacts, dtype: ir.DataType | None) -> Fact:
    result = Fact(dtype, node.shape(0))
    if dtype not in INTEGER_RANGES:
        return result
    contents = node.contents(0)
    source = node.dtype(0)
    if contents is None and source in _EXACT_FLOATS:
        contents = _whole_numbers(node)
    if contents is None:
        return result
    if dtype == ir.DataType.BOOL:
        cast = [_is_nonzero(dim) for dim in contents]
    else:
        cast = [dim if dtype == source or representable(dim, dtype) else None for dim in contents]
    known = tuple(dim for dim in cast if dim is not None)
    if len(known) == len(contents):
        result.contents = known
    return result


_EXACT_FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16})


def _whole_numbers(node: NodeFacts) -> Contents | None:
    """The elements of a small floating-point constant, if all are integral."""
    array = node.constant_array(0, limit=16)
    if array is None:
        return None
    numbers = array.reshape(-1).tolist()
    if all(number == number and abs(number) < 1 << 53 and number == int(number) for number in numbers):
        return tuple(int(number) for number in numbers)
    return None


def _is_nonzero(dim: Dim) -> Dim | None:
    lo, hi = bounds(dim)
    if lo > 0 or hi < 0:
        return 1
    if lo == hi == 0:
        return 0
    return dim if lo == 0 and hi == 1 else None


@shape_rule("Dropout")
def dropout(node: NodeFacts) -> list[Fact]:
    """The mask is boolean since opset 10."""
    mask = node.like(0, ir.DataType.BOOL if node.version >= 10 else None)
    return [node.like(0), mask]


@shape_rule("Bernoulli", "RandomNormalLike", "RandomUniformLike", "EyeLike")
def like_with_dtype(node: NodeFacts) -> Fact:
    """The shape of the input, in the dtype of an attribute."""
    dtype = node.attr("dtype")
    return node.like(0, None if dtype is None else ir.DataType(dtype.value))
