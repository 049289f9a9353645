"""Elementwise operators of several inputs, with numpy-style broadcasting."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from graphopt import ir
from graphopt.analysis.shape_inference.node_facts import NodeFacts, shape_rule
from graphopt.analysis.shape_inference.rules.layout import as_array
from graphopt.analysis.shape_inference.value_facts import (
    Contents,
    Fact,
    ShapeTuple,
    element_count,
    representable,
    tracks_contents,
)
from graphopt.analysis.symbolic import Dim, at_least, bounds, dim_max, dim_min, equal, floordiv, known_nonzero
from graphopt.ops import traits

_NUMPY_STYLE_SINCE = {"Sum": 8, "Max": 8, "Min": 8, "Mean": 8}  # opset version; 7 for other operators


@shape_rule(
    *("Add", "And", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div", "Equal", "Greater"),
    *("GreaterOrEqual", "Less", "LessOrEqual", "Max", "Mean", "Min", "Mod", "Mul", "Or", "PRelu"),
    *("Pow", "Sub", "Sum", "Xor"),
)
def elementwise(node: NodeFacts) -> Fact:
    """All inputs broadcast together. The dtype is bool, or the dtype of the first input."""
    op_type = node.ir.op_type
    dtype = ir.DataType.BOOL if op_type in traits.BOOLEAN_RESULTS else node.dtype(0)
    if dtype is None and op_type != "Pow":  # all inputs have one dtype, except for the exponent of Pow
        dtype = next((fact.dtype for fact in node.facts if fact.dtype is not None), None)
    shapes = [fact.shape for fact in node.facts]
    if node.version < 8 and node.version < _NUMPY_STYLE_SINCE.get(op_type, 7):
        # The second input broadcasts to the first, or all inputs have the same shape.
        known = shapes[0] if "broadcast" in node.ir.attributes else next(filter(None, shapes), None)
        return Fact(dtype, known)
    shape = shapes[0] if len(shapes) == 1 else node.broadcast(shapes)
    return Fact(dtype, shape, _contents(node, op_type, dtype, shape))


def _contents(
    node: NodeFacts, op_type: str, dtype: ir.DataType | None, shape: ShapeTuple | None
) -> Contents | None:
    for fact in node.facts:
        if fact.contents is None:
            return None
    function = _FUNCTIONS.get(op_type)
    if function is None or shape is None or not tracks_contents(dtype, shape):
        return None
    if op_type == "Mod" and node.attr_int("fmod", 0):
        function = _fmod
    inputs = [broadcast_contents(fact, shape) for fact in node.facts]
    result: list[Dim] = []
    for dims in zip(*inputs, strict=True):
        value: Dim | None = dims[0]
        for other in dims[1:]:
            value = function(value, other) if value is not None else None
        if value is None:
            return None
        result.append(value)
    assert dtype is not None
    if not all(representable(value, dtype) for value in result):
        return None
    return tuple(result)


def broadcast_contents(fact: Fact, shape: ShapeTuple) -> Contents:
    """The contents of ``fact``, broadcast to the static ``shape``. Raises ValueError if shapes do not fit."""
    contents = fact.contents
    assert contents is not None
    if fact.shape == shape:
        return contents
    count = element_count(shape) or 0
    if len(contents) == 1:
        return contents * count
    assert fact.shape is not None
    target = ir.all_ints(shape) or ()
    return tuple(np.broadcast_to(as_array(contents, fact.shape), target).reshape(-1).tolist())


def _div(a: Dim, b: Dim) -> Dim | None:
    """Integer division rounds towards zero (ONNX: Div)."""
    if isinstance(a, int) and isinstance(b, int):
        return None if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    return floordiv(a, b) if at_least(a, 0) and at_least(b, 1) else None


def _mod(a: Dim, b: Dim) -> Dim | None:
    """The remainder with the sign of the divisor (ONNX: Mod with fmod=0)."""
    return a - floordiv(a, b) * b if known_nonzero(b) else None


def _fmod(a: Dim, b: Dim) -> Dim | None:
    return _mod(a, b) if at_least(a, 0) and at_least(b, 1) else None


def _pow(a: Dim, b: Dim) -> Dim | None:
    if isinstance(a, int) and isinstance(b, int) and 0 <= b < 64:
        return a**b
    return None


def _comparison_by_sign(
    holds: Callable[[Dim], bool], fails: Callable[[Dim], bool]
) -> Callable[[Dim, Dim], Dim | None]:
    """A comparison of ``a`` and ``b``, decided by the sign of ``a - b``."""

    def compare(a: Dim, b: Dim) -> Dim | None:
        difference = a - b
        if holds(difference):
            return 1
        return 0 if fails(difference) else None

    return compare


_FUNCTIONS: dict[str, Callable[[Dim, Dim], Dim | None]] = {
    "Add": lambda a, b: a + b,
    "Sum": lambda a, b: a + b,
    "Sub": lambda a, b: a - b,
    "Mul": lambda a, b: a * b,
    "Div": _div,
    "Mod": _mod,
    "Pow": _pow,
    "Max": dim_max,
    "Min": dim_min,
    "Equal": _comparison_by_sign(lambda d: equal(d, 0), known_nonzero),
    "Greater": _comparison_by_sign(lambda d: at_least(d, 1), lambda d: bounds(d)[1] <= 0),
    "GreaterOrEqual": _comparison_by_sign(lambda d: at_least(d, 0), lambda d: bounds(d)[1] < 0),
    "Less": _comparison_by_sign(lambda d: bounds(d)[1] < 0, lambda d: at_least(d, 0)),
    "LessOrEqual": _comparison_by_sign(lambda d: bounds(d)[1] <= 0, lambda d: at_least(d, 1)),
    "And": lambda a, b: a * b,
    "Or": lambda a, b: a + b - a * b,
    "Xor": lambda a, b: a + b - 2 * a * b,
}


@shape_rule("Where")
def where(node: NodeFacts) -> Fact:
    """Condition, X and Y broadcast together."""
    shape = node.broadcast([node.shape(0), node.shape(1), node.shape(2)])
    dtype = node.dtype(1) or node.dtype(2)
    result = Fact(dtype, shape)
    condition = node.contents(0)
    if condition is not None and shape is not None and tracks_contents(dtype, shape):
        sides = [node.named_contents(1), node.named_contents(2)]
        if None not in sides:
            chosen = [
                (x if c == 1 else y) if isinstance(c, int) else (x if x == y else None)
                for c, x, y in zip(*(broadcast_contents(node.fact(i), shape) for i in range(3)), strict=True)
            ]
            if None not in chosen:
                result.contents = tuple(dim for dim in chosen if dim is not None)
    return result
