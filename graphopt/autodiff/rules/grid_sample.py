"""GridSample: interpolation weights of the elements around each point of the grid."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np

from graphopt import ir
from graphopt.autodiff.building_blocks.scatter import scatter_elements
from graphopt.autodiff.graph_builder import GraphBuilder, Size
from graphopt.autodiff.primal_node import PrimalNode
from graphopt.autodiff.rule_registry import Cotangents, gradient
from graphopt.util.lazy_dataclass import dataclass

#: The taps of a point for each mode: offsets, in elements, from the last element before the point, and
#: weights, polynomials in the distance from that element. Row k has the coefficients of the k-th power. Cubic
#: is Keys' convolution with a = -3/4.
_TAPS: dict[str, tuple[list[int], list[list[float]]]] = {
    "nearest": ([0], [[1.0]]),
    "linear": ([0, 1], [[1.0, 0], [-1, 1]]),
    "cubic": (
        [-1, 0, 1, 2],
        [[0, 1.0, 0, 0], [-0.75, 0, 0.75, 0], [1.5, -2.25, 1.5, -0.75], [-0.75, 1.25, -1.25, 0.75]],
    ),
}
_OLD_NAMES = {"bilinear": "linear", "bicubic": "cubic"}


@dataclass
class _Along:
    """The taps of points along one axis of x; shapes broadcast to [batch, points, taps of each axis].

    Attributes:
        indices: int64 indices into the axis.
        weights: weights of the elements, zero outside of x; ``None`` for weights of 1.
        slopes: derivatives of the weights by the grid's coordinate; ``None`` for zero.
    """

    indices: ir.Value
    weights: ir.Value | None
    slopes: ir.Value | None


@gradient("GridSample")
def grid_sample(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """dx: dy times the weights, scattered to the taps; dgrid: Σ dy x times the slopes of the weights."""
    x, grid = node.x, op.cast_like(node.input(1), node.x)
    count = node.rank(x) - 2
    batch, sizes = op.dim(x, 0), [op.dim(x, axis) for axis in range(2, count + 2)]
    points = op.product(*(op.dim(grid, axis) for axis in range(1, count + 1)))
    rows = op.reshape(grid, op.shape(batch, points, *[1] * count, count))
    along = []
    for axis, size in enumerate(sizes):  # coordinates of a point are in reverse order of the axes
        number = op.Gather(rows, np.int64(count - 1 - axis), axis=-1)
        along.append(_taps_along(op, node, number, size, _facing(axis, count)))
    indices, stride = along[-1].indices, sizes[-1]
    for one, size in reversed(list(zip(along[:-1], sizes, strict=False))):
        indices = op.Add(op.Mul(one.indices, _integer(op, stride)), indices)
        stride = op.product(stride, size)
    dx = dgrid = None
    if node.needs_grad(0):
        dx = _by_x(op, node, dy, along, indices, points)
    if node.needs_grad(1) and all(one.slopes is not None for one in along):
        dgrid = op.cast_like(_by_grid(op, node, dy, along, indices, points), node.input(1))
    return dx, dgrid


def _by_x(
    op: GraphBuilder, node: PrimalNode, dy: ir.Value, along: list[_Along], indices: ir.Value, points: Size
) -> ir.Value:
    x = node.x
    batch, channels, *sizes = [op.dim(x, axis) for axis in range(node.rank(x))]
    taps = _taps(node) ** len(along)
    terms = op.reshape(dy, op.shape(batch, channels, points, 1))
    weights = [one.weights for one in along if one.weights is not None]
    if weights:
        factors = op.reshape(reduce(op.Mul, weights), op.shape(batch, 1, points, taps))
        terms = op.Mul(terms, factors)
    every = op.product(points, taps)
    shape = op.shape(batch, channels, every)
    index = op.Expand(op.reshape(indices, op.shape(batch, 1, every)), shape)
    flat = op.shape(batch, channels, op.product(*sizes))
    summed = scatter_elements(op, flat, index, op.reshape(terms, shape), axis=2)
    return op.reshape(summed, op.shape_of(x))


def _by_grid(
    op: GraphBuilder, node: PrimalNode, dy: ir.Value, along: list[_Along], indices: ir.Value, points: Size
) -> ir.Value:
    x = node.x
    count = len(along)
    batch, channels, *sizes = [op.dim(x, axis) for axis in range(count + 2)]
    taps = _taps(node)
    every = op.product(points, taps**count)
    rows = op.Transpose(op.reshape(x, op.shape(batch, channels, op.product(*sizes))), perm=[0, 2, 1])
    neighbours = op.GatherND(rows, op.reshape(indices, op.shape(batch, every, 1)), batch_dims=1)
    neighbours = op.reshape(neighbours, op.shape(batch, points, taps**count, channels))
    dy_rows = op.Transpose(op.reshape(dy, op.shape(batch, channels, points)), perm=[0, 2, 1])
    products = op.MatMul(neighbours, op.Unsqueeze(dy_rows, [3]))
    products = op.reshape(products, op.shape(batch, points, *[taps] * count))
    numbers = []
    for own in reversed(along):
        factors = [one.slopes if one is own else one.weights for one in along]
        slope = reduce(op.Mul, factors, products)
        numbers.append(op.ReduceSum(slope, list(range(2, count + 2)), keepdims=0))
    stacked = op.Concat(*(op.Unsqueeze(number, [2]) for number in numbers), axis=2)
    return op.reshape_like(stacked, node.input(1))


def _taps_along(op: GraphBuilder, node: PrimalNode, number: ir.Value, size: Size, shape: list[int]) -> _Along:
    """The taps along an axis of ``size`` for coordinates ``number``; ``shape`` has a -1 for the taps."""
    align = bool(node.attribute("align_corners", 0))
    length = op.size_as(size, number)
    if align:
        factor = op.Mul(op.Sub(length, 1.0), 0.5)
        position = op.Mul(op.Add(number, 1.0), factor)
    else:
        factor = op.Mul(length, 0.5)
        position = op.Sub(op.Mul(op.Add(number, 1.0), factor), 0.5)
    mode = _mode(node)
    offsets, powers = _TAPS[mode]
    if mode == "nearest":
        position = op.Round(position)
    before = op.Floor(position)
    distance = op.Sub(position, before)
    type_ = op.dtype(number).numpy()
    rows = [np.array(row, type_).reshape(shape) for row in powers]
    weights = slopes = None
    if mode != "nearest":
        weights = _polynomial(op, rows, distance)
        rates = [(power * row).astype(type_) for power, row in enumerate(rows)]
        slopes = op.Mul(_polynomial(op, rates[1:], distance), factor)
    taps = op.Add(before, op.constant(np.array(offsets, type_).reshape(shape)))
    padding = node.attribute("padding_mode", "zeros")
    if padding == "reflection":
        return _Along(_reflected(op, taps, size, align), weights, slopes)
    clamped = op.Max(op.Min(taps, op.Sub(length, 1.0)), 0.0)
    if padding == "zeros":
        within = op.Equal(taps, clamped)
        weights = op.cast_like(within, number) if weights is None else op.only_where(within, weights)
        slopes = None if slopes is None else op.only_where(within, slopes)
    return _Along(op.Cast(clamped, to=ir.DataType.INT64), weights, slopes)


def _polynomial(op: GraphBuilder, factors: list[np.ndarray], x: ir.Value) -> ir.Value:
    """The polynomial in ``x`` with coefficients ``factors``, the constant one first."""
    result = op.constant(factors[-1])
    for factor in reversed(factors[:-1]):
        result = op.Add(op.Mul(result, x), factor)
    return result


def _reflected(op: GraphBuilder, taps: ir.Value, size: Size, align: bool) -> ir.Value:
    """Indices reflected at both ends of an axis: at the centres of the end elements, or at outer edges."""
    if isinstance(size, int):
        period: Any = op.constant(np.int64(max(2 * size - 2, 1) if align else 2 * size))
    else:
        period = op.Mul(_integer(op, size), np.int64(2))
        period = op.Max(op.Sub(period, np.int64(2)), np.int64(1)) if align else period
    index = op.Mod(op.Cast(taps, to=ir.DataType.INT64), period)
    back = op.Sub(period, index)
    return op.Min(index, back if align else op.Sub(back, np.int64(1)))


def _mode(node: PrimalNode) -> str:
    mode = node.attribute("mode", "linear")
    return _OLD_NAMES.get(mode, mode)


def _taps(node: PrimalNode) -> int:
    """The number of taps along each axis."""
    return len(_TAPS[_mode(node)][0])


def _facing(axis: int, count: int) -> list[int]:
    return [-1 if index == axis else 1 for index in range(count)]


def _integer(op: GraphBuilder, size: Size) -> ir.Value:
    """``size`` as an int64 scalar or vector of one element."""
    return op.constant(np.int64(size)) if isinstance(size, int) else size
