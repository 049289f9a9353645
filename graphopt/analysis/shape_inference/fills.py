"""Fills: tensors whose elements are all equal, of any shape.

``ConstantOfShape`` and ``Expand`` of a number create fills, most data movement operators propagate them, and
element-wise functions of fills are fills. A number is a numpy scalar of the tensor's dtype. Numbers are
compared bit by bit: -0.0 is not 0.0. This module computes only results that IEEE 754 and two's complement
define exactly, so that all kernels agree.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from graphopt import ir
from graphopt.analysis.shape_inference.node_facts import NodeFacts
from graphopt.analysis.shape_inference.value_facts import same_number
from graphopt.ops import traits

Fill: TypeAlias = np.generic | None
_Rule: TypeAlias = Callable[[NodeFacts], Fill]


def fill_of(node: NodeFacts) -> Fill:
    """The value of all elements of the first output (of all outputs for Split); ``None`` if unknown."""
    rule = _RULES.get(node.ir.op_type)
    return None if rule is None or node.ir.domain != "" else rule(node)


def is_number(fill: Fill, number: float) -> bool:
    """Whether ``fill`` is ``number``; -0.0 is not 0.0."""
    if fill is None or fill != number:
        return False
    return number != 0 or _is_negative(fill) == (math.copysign(1, number) < 0)


def may_fill(op_type: str) -> bool:
    """Whether an operator of this name can produce a fill."""
    return op_type in _RULES


# Creation and data movement


def _constant_of_shape(node: NodeFacts) -> Fill:
    attribute = node.attr("value")
    if attribute is None:
        return np.float32(0)
    return ir.fill_of_tensor(attribute.value)


def _first(node: NodeFacts) -> Fill:
    return node.fill(0)


def _concat(node: NodeFacts) -> Fill:
    return _common(node, range(len(node.facts)))


def _common(node: NodeFacts, inputs: range) -> Fill:
    """The common fill of ``inputs``."""
    first = node.fill(inputs[0])
    if first is None or not all(same_number(first, node.fill(index)) for index in inputs[1:]):
        return None
    return first


def _pad(node: NodeFacts) -> Fill:
    """The fill of the data, if the padding equals it or repeats elements of the data."""
    fill = node.fill(0)
    if fill is None or node.attr_str("mode", "constant") != "constant":
        return fill
    if node.version < 11:
        attribute = node.attr("value")
        around: Any = 0.0 if attribute is None else attribute.value
        return fill if same_number(fill, fill.dtype.type(around)) else None
    padding = node.fill(2) if node.has(2) else fill.dtype.type(0)
    return fill if same_number(fill, padding) else None


def _where(node: NodeFacts) -> Fill:
    condition = node.fill(0)
    if condition is not None:
        return _signless(node.fill(1 if condition else 2))
    return _signless(_common(node, range(1, 3)))


def _signless(fill: Fill) -> Fill:
    """``fill``, or ``None`` for -0.0: onnxruntime's Where may change the sign of -0.0."""
    return None if fill is not None and not fill and _is_negative(fill) else fill


def _scatter(node: NodeFacts) -> Fill:
    """The fill of the data, if updates consist of the same number and thus change nothing."""
    if node.attr_str("reduction", "none") != "none":
        return None
    fill = node.fill(0)
    return fill if same_number(fill, node.fill(2)) else None


def _trilu(node: NodeFacts) -> Fill:
    fill = node.fill(0)
    return fill if fill is not None and not fill and not _is_negative(fill) else None


# Element-wise functions ------------------------------------------------------------------------

_FLOATS = ("float32", "float64")
_ALL_FLOATS = tuple(dtype for dtype in ir.DataType if dtype.is_floating_point())


def _unary(compute: Callable[[Any], Any], kinds: str) -> _Rule:
    """``compute`` applied to a fill whose dtype is one of ``kinds``."""

    def rule(node: NodeFacts) -> Fill:
        return _computed(compute, node.fill(0), kinds=kinds)

    return rule


def _binary(
    compute: Callable[[Any, Any], Any], kinds: str, *, absorbing: int | None = None, extremum: bool = False
) -> _Rule:
    """The binary function ``compute``, applied to two or more numbers from left to right.

    Args:
        absorbing: an integer or boolean operand that alone determines the result, such as 0 in a product.
        extremum: whether the function is a maximum or minimum, whose result for 0.0 and -0.0 is unknown.
    """

    def rule(node: NodeFacts) -> Fill:
        fills = []
        for index in range(len(node.facts)):
            fill = node.fill(index)
            if fill is None and (absorbing is None or node.dtype(index) in _ALL_FLOATS):
                return None  # avoids unnecessary reads of constants
            fills.append(fill)
        if absorbing is not None:
            for fill in fills:
                if fill is not None and fill.dtype.kind in "iub" and fill == absorbing:
                    return fill
        result = fills[0]
        for fill in fills[1:]:
            if extremum and result is not None and fill is not None and not result and not fill:
                result = result if same_number(result, fill) else None
            else:
                result = _computed(compute, result, fill, kinds=kinds)
        return result

    return rule


def _computed(compute: Callable[..., Any], *fills: Fill, kinds: str) -> Fill:
    """``compute`` applied to numbers of one dtype; ``None`` if the result is NaN or not defined exactly."""
    numbers = [fill for fill in fills if fill is not None]
    first = numbers[0] if numbers else None
    if first is None or len(numbers) < len(fills) or any(n.dtype != first.dtype for n in numbers):
        return None
    if first.dtype.kind not in kinds or (first.dtype.kind == "f" and first.dtype.name not in _FLOATS):
        return None
    with np.errstate(all="ignore"):
        result: Any = np.asarray(compute(*numbers))[()]
    if first.dtype.kind in "iu" and int(result) != compute(*map(int, numbers)):
        return None  # overflow
    if result.dtype not in (np.bool_, first.dtype) or np.isnan(result):
        return None
    return result


def _cast(node: NodeFacts) -> Fill:
    return _converted(node.fill(0), ir.DataType(node.attr_int("to", 0)))


def _cast_like(node: NodeFacts) -> Fill:
    dtype = node.dtype(1)
    return None if dtype is None else _converted(node.fill(0), dtype)


_CASTS = "?bBhHiIlLqQfd"


def _converted(fill: Fill, dtype: ir.DataType) -> Fill:
    """``fill`` converted to ``dtype``, truncated to an integer if necessary; ``None`` out of range."""
    if fill is None or dtype in (ir.DataType.UNDEFINED, ir.DataType.STRING):
        return None
    target = dtype.numpy()
    if fill.dtype == target:
        return fill
    if fill.dtype.char not in _CASTS or target.char not in _CASTS:
        return None
    if fill.dtype.kind == "f":
        if not np.isfinite(fill):
            return None
        if target.kind in "iu":
            limits = np.iinfo(target)
            whole = int(fill)
            return target.type(whole) if limits.min <= whole <= limits.max else None
    if target.kind in "iu" and not np.iinfo(target).min <= int(fill) <= np.iinfo(target).max:
        return None
    with np.errstate(all="ignore"):
        converted: Any = np.asarray(fill).astype(target)[()]
    number: np.generic = converted
    return number


def _is_negative(number: np.generic) -> bool:
    """Whether the sign bit of a zero is set."""
    return number.dtype.kind not in "iub" and bool(np.signbit(np.float64(number)))


_RULES: dict[str, _Rule] = {
    **dict.fromkeys(traits.SELECTS, _first),
    "ConstantOfShape": _constant_of_shape,
    "Concat": _concat,
    "Pad": _pad,
    "Where": _where,
    "ScatterElements": _scatter,
    "ScatterND": _scatter,
    "Trilu": _trilu,
    "Cast": _cast,
    "CastLike": _cast_like,
    "Neg": _unary(operator.neg, "fi"),
    "Abs": _unary(abs, "fiu"),
    "Not": _unary(np.logical_not, "b"),
    "Add": _binary(operator.add, "fiu"),
    "Sum": _binary(operator.add, "fiu"),
    "Sub": _binary(operator.sub, "fiu"),
    "Mul": _binary(operator.mul, "fiu", absorbing=0),
    "Div": _binary(operator.truediv, "f"),
    "Max": _binary(np.maximum, "fiu", extremum=True),
    "Min": _binary(np.minimum, "fiu", extremum=True),
    "And": _binary(np.logical_and, "b", absorbing=0),
    "Or": _binary(np.logical_or, "b", absorbing=1),
    "Xor": _binary(np.logical_xor, "b"),
    "BitwiseAnd": _binary(np.bitwise_and, "iu", absorbing=0),
    "BitwiseOr": _binary(np.bitwise_or, "iu"),
    "BitwiseXor": _binary(np.bitwise_xor, "iu"),
    "Equal": _binary(np.equal, "fiub"),
    "Greater": _binary(np.greater, "fiu"),
    "GreaterOrEqual": _binary(np.greater_equal, "fiu"),
    "Less": _binary(np.less, "fiu"),
    "LessOrEqual": _binary(np.less_equal, "fiu"),
}
