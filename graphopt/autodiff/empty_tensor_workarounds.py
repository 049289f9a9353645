"""Workarounds for operators that onnxruntime computes incorrectly for empty tensors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphopt import ir
from graphopt.autodiff.node_builder import NodeBuilder, Operand, Size
from graphopt.context import Dim


def matmul(op: NodeBuilder, *operands: Operand) -> ir.Value:
    """A MatMul that is zero if the summed axis is empty: onnxruntime leaves such results uninitialized."""
    y = op.node("MatMul", operands)
    a, b = _operands(y)
    left, right = op.cx.shape(a), op.cx.shape(b)
    if left is not None:
        x, shape, axis = a, left, -1
    elif right is not None:
        x, shape, axis = b, right, -2
    else:
        return _where(op, y, op.Gather(op.Shape(a), [-1]))
    axis = max(len(shape) + axis, 0)
    return _zero_if_empty(op, y, [op.dim(x, axis)]) if _may_be_empty(op, y, shape[axis]) else y


def einsum(op: NodeBuilder, operands: Sequence[Operand], equation: str) -> ir.Value:
    """An Einsum without ellipses that is zero if a summed axis is empty."""
    y = op.node("Einsum", operands, {"equation": equation})
    left, _, result = equation.partition("->")
    summed: dict[str, Size] = {}
    for term, operand in zip(left.split(","), _operands(y), strict=True):
        shape = op.cx.shape(operand)
        for axis, letter in enumerate(term):
            if letter in result or letter in summed or shape is None or not _may_be_empty(op, y, shape[axis]):
                continue
            summed[letter] = op.dim(operand, axis)
    return _zero_if_empty(op, y, list(summed.values())) if summed else y


def expand(op: NodeBuilder, x: ir.Value, shape: ir.Value | Sequence[int]) -> ir.Value:
    """An Expand that is kept: onnxruntime removes an Expand to a constant shape that contains a 0."""
    known = op.cx.static_ints(shape) if isinstance(shape, ir.Value) else tuple(shape)
    if known is None or 0 not in known or op.cx.rank(x) != len(known):
        return op.node("Expand", [x, shape])
    sizes = np.array(known, np.int64)
    dims = op.Where(op.constant(sizes == 1), op.shape_of(x), op.constant(sizes))
    return op.ConstantOfShape(dims, value=np.zeros(1, op.dtype(x).numpy()))


def _operands(y: ir.Value) -> list[ir.Value]:
    node = y.producer()
    assert node is not None
    return [value for value in node.inputs if value is not None]


def _may_be_empty(op: NodeBuilder, y: ir.Value, dim: Dim) -> bool:
    """Whether ``dim``, a summed size, may be 0 while ``y`` has elements."""
    if isinstance(dim, int):
        return dim == 0
    shape = op.cx.shape(y)
    return shape is None or not any(op.cx.facts.dim_equal(dim, other) for other in shape)


def _zero_if_empty(op: NodeBuilder, y: ir.Value, sizes: Sequence[Size]) -> ir.Value:
    count = op.product(*sizes)
    return _where(op, y, op.constant(np.array([count])) if isinstance(count, int) else count)


def _where(op: NodeBuilder, y: ir.Value, count: ir.Value) -> ir.Value:
    """``y`` if ``count``, an int64 vector of one element, is positive; otherwise zeros."""
    some = op.Greater(count, 0)
    return op.only_where(op.Squeeze(some, [0]) if op.cx.rank(y) == 0 else some, y)
