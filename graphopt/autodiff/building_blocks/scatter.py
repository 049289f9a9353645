"""Scatter cotangents to the positions of selected elements, and add them at repeated positions.

ScatterND with reduction is avoided: with several threads, onnxruntime loses some of the terms.
ScatterElements adds sequentially.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from graphopt import ir
from graphopt.autodiff.graph_builder import GraphBuilder, Size
from graphopt.autodiff.primal_node import PrimalNode

#: Up to this number of rows, a product with a one-hot matrix is faster than a scatter
#: (benchmarks.scatter_gradients).
_FEW_ROWS = 64
_HALVES = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
#: If x has this many times the rows of dy, copying x costs more than reading indices column by column.
_SPARSE = 32


def scatter_rows(
    op: GraphBuilder, x: ir.Value, rows: ir.Value, dy: ir.Value, *, leading: int = 1, add: bool = True
) -> ir.Value:
    """Zeros like ``x``, with ``dy`` added to rows.

    Args:
        rows: row numbers of any shape, counting the first ``leading`` axes of ``x`` as one; negative ones
            count from the end.
        dy: a row for each of ``rows``, in the same order.
        add: whether row numbers may repeat.
    """
    shape = op.cx.shape(x)
    assert shape is not None
    sizes = [op.dim(x, axis) for axis in range(len(shape))]
    count, width = op.product(*sizes[:leading]), op.product(*sizes[leading:])
    flat = rows if op.cx.rank(rows) == 1 else op.Reshape(rows, [-1])
    is_matrix = len(shape) == leading + 1 and op.cx.rank(rows) == 1
    if width == 1:
        return scatter_positions(op, x, flat, dy, add=add)
    if count == 0:
        return op.zeros_like(x)
    if add and isinstance(count, int) and count <= _FEW_ROWS:
        bits = one_hot(op, flat, count, dy, axis=0)
        total = op.MatMul(bits, dy if is_matrix else _matrix(op, dy, flat, width))
    elif _are_few(op, rows, count):
        spread = op.Expand(op.Unsqueeze(flat, [1]), op.shape(1, width))
        total = _scatter(op, [count, width], spread, dy if is_matrix else _matrix(op, dy, flat, width), add)
    else:  # consecutive elements are read much faster than columns
        step = op.constant(np.array([width], np.int64)) if isinstance(width, int) else width
        first = op.Mul(op.Unsqueeze(_int64(op, flat), [1]), step)
        positions = op.Reshape(op.Add(first, number_range(op, width)), [-1])
        total = _scatter(op, [op.product(count, width)], positions, op.Reshape(dy, [-1]), add)
    return op.reshape_like(total, x)


def scatter_elements(
    op: GraphBuilder, shape: ir.Value, indices: ir.Value, dy: ir.Value, *, axis: int = 0, add: bool = True
) -> ir.Value:
    """Zeros of a shape, with ``dy`` added at ``indices`` along ``axis``, as by ScatterElements."""
    if add:
        op.require_opset(16)
    dtype = op.dtype(dy)
    if add and dtype in _HALVES:  # onnxruntime can't add these types
        dy = op.cast(dy, ir.DataType.FLOAT)
    zeros = op.ConstantOfShape(shape, value=np.zeros(1, op.dtype(dy).numpy()))
    total = op.ScatterElements(zeros, indices, dy, axis=axis, reduction="add" if add else None)
    return op.cast(total, dtype)


def _scatter(op: GraphBuilder, sizes: Sequence[Size], indices: ir.Value, dy: ir.Value, add: bool) -> ir.Value:
    """Zeros of ``sizes``, with ``dy`` added at ``indices`` along the first axis."""
    return scatter_elements(op, op.shape(*sizes), indices, dy, add=add)


def _are_few(op: GraphBuilder, rows: ir.Value, count: Size) -> bool:
    """Whether there are far fewer ``rows`` than ``count``; False if unknown."""
    shape = op.cx.static_shape(rows)
    return shape is not None and isinstance(count, int) and math.prod(shape) * _SPARSE <= count


def scatter_along(
    op: GraphBuilder, x: ir.Value, indices: ir.Value, dy: ir.Value, axis: int, *, add: bool = True
) -> ir.Value:
    """Zeros like ``x``, with the slices of ``dy`` along ``axis`` added at ``indices``, a vector."""
    if add:
        op.require_opset(16)
    rank = len(op.cx.shape(x) or ())
    sizes: list[Size] = [1 if other == axis else op.dim(x, other) for other in range(rank)]
    column = indices if axis == rank - 1 else op.Unsqueeze(indices, list(range(1, rank - axis)))
    spread = column if rank == 1 else op.Expand(column, op.shape(*sizes))
    return scatter_elements(op, op.shape_of(x), spread, dy, axis=axis, add=add)


def scatter_moved(
    op: GraphBuilder,
    node: PrimalNode,
    dy: ir.Value,
    rest: Sequence[ir.Value | None],
    attributes: Mapping[str, Any],
    *,
    add: bool,
) -> ir.Value:
    """Zeros like x, with each element of ``dy`` added at the position that ``node`` moved it from.

    The same operator, applied to the positions themselves, yields the source of each element. Sources may
    repeat only if ``add``.
    """
    x = node.x
    positions = op.reshape(number_range(op, _count(op, x)), op.shape_of(x))
    moved = op.node(node.op_type, [positions, *rest], attributes, domain=node.raw.domain)
    return scatter_positions(op, x, moved, dy, add=add)


def scatter_positions(
    op: GraphBuilder, x: ir.Value, positions: ir.Value, dy: ir.Value, *, add: bool
) -> ir.Value:
    """Zeros like ``x``, of any rank, with ``dy`` at the flat positions ``positions``, added if ``add``."""
    total = _scatter(op, [_count(op, x)], op.Reshape(positions, [-1]), op.Reshape(dy, [-1]), add)
    return op.reshape_like(total, x)


def _count(op: GraphBuilder, x: ir.Value) -> Size:
    shape = op.cx.static_shape(x)
    return op.Reshape(op.Size(x), [1]) if shape is None else math.prod(shape)


def row_numbers(op: GraphBuilder, x: ir.Value, leading: int) -> ir.Value:
    """The row numbers of ``x``, int64, of the shape of its first ``leading`` axes."""
    sizes = [op.dim(x, axis) for axis in range(leading)]
    return op.reshape(number_range(op, op.product(*sizes)), op.shape(*sizes))


def one_hot(op: GraphBuilder, indices: ir.Value, count: Size, like: ir.Value, *, axis: int) -> ir.Value:
    """1 at the indices along a new axis of size ``count``, 0 elsewhere, in the element type of ``like``."""
    # onnxruntime's OneHot supports few types other than int64 indices, and no float64 results
    bits = op.OneHot(_int64(op, indices), op.shape(count), np.array([0, 1], np.float32), axis=axis)
    return op.cast_like(bits, like)


def number_range(op: GraphBuilder, count: Size) -> ir.Value:
    """0, 1, … below ``count``, int64."""
    end = op.scalar(count)
    return op.Range(op.constant(np.int64(0)), end, op.constant(np.int64(1)))


def _matrix(op: GraphBuilder, dy: ir.Value, rows: ir.Value, width: Size) -> ir.Value:
    """``dy`` as a matrix with a row for each of ``rows``."""
    height: Size = -1 if isinstance(width, int) and width else op.dim(rows, 0)
    return op.reshape(dy, op.shape(height, width))


def _int64(op: GraphBuilder, indices: ir.Value) -> ir.Value:
    return op.cast(indices, ir.DataType.INT64)
