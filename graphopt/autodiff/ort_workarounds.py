"""Operators that onnxruntime gets wrong for tensors without elements, written so that it does not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from graphopt import ir

if TYPE_CHECKING:
    from graphopt.autodiff.builder import GraphBuilder, Operand, Size
    from graphopt.context import Dim


def matmul(op: GraphBuilder, *operands: Operand) -> ir.Value:
    """A MatMul, zero where it sums over nothing: onnxruntime leaves such results as they were in memory."""
    y: ir.Value = op.node("MatMul", operands)
    a, b = _operands(y)
    left, right = op.cx.shape(a), op.cx.shape(b)
    if left is None and right is None:
        return _where(op, y, op.Gather(op.Shape(a), [-1]))
    x, shape, axis = (a, left, -1) if left is not None else (b, right, -2)
    assert shape is not None
    axis = max(len(shape) + axis, 0)
    return _zero_unless(op, y, [op.dim(x, axis)]) if _is_open(op, y, shape[axis]) else y


def einsum(op: GraphBuilder, operands: Sequence[Operand], equation: str) -> ir.Value:
    """An Einsum without ellipses, likewise."""
    y: ir.Value = op.node("Einsum", operands, {"equation": equation})
    left, _, result = equation.partition("->")
    summed: dict[str, Size] = {}
    for term, operand in zip(left.split(","), _operands(y), strict=True):
        shape = op.cx.shape(operand)
        for axis, letter in enumerate(term):
            if letter in result or letter in summed or shape is None or not _is_open(op, y, shape[axis]):
                continue
            summed[letter] = op.dim(operand, axis)
    return _zero_unless(op, y, list(summed.values())) if summed else y


def expand(op: GraphBuilder, x: ir.Value, shape: ir.Value | Sequence[int]) -> ir.Value:
    """An Expand. To a constant shape of which a size is 0, onnxruntime's optimizer takes it for nothing."""
    known = op.cx.static_ints(shape) if isinstance(shape, ir.Value) else tuple(shape)
    if known is None or 0 not in known or op.cx.rank(x) != len(known):
        y: ir.Value = op.node("Expand", [x, shape])
        return y
    sizes = np.array(known, np.int64)
    dims = op.Where(op.constant(sizes == 1), op.shape_of(x), op.constant(sizes))
    empty: ir.Value = op.ConstantOfShape(dims, value=np.zeros(1, op.dtype(x).numpy()))
    return empty


def _operands(y: ir.Value) -> list[ir.Value]:
    node = y.producer()
    assert node is not None
    return [value for value in node.inputs if value is not None]


def _is_open(op: GraphBuilder, y: ir.Value, dim: Dim) -> bool:
    """Whether a size that is summed over may be 0 while ``y`` has elements."""
    if isinstance(dim, int):
        return dim == 0
    shape = op.cx.shape(y)
    return shape is None or not any(op.cx.facts.dim_equal(dim, other) for other in shape)


def _zero_unless(op: GraphBuilder, y: ir.Value, sizes: Sequence[Size]) -> ir.Value:
    count = op.product(*sizes)
    return _where(op, y, op.constant(np.array([count])) if isinstance(count, int) else count)


def _where(op: GraphBuilder, y: ir.Value, count: ir.Value) -> ir.Value:
    """``y`` if ``count``, a vector of one element, is not 0."""
    some = op.Greater(count, 0)
    return op.only_where(op.Squeeze(some, [0]) if op.cx.rank(y) == 0 else some, y)
