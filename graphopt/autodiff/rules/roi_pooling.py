"""Pooling over regions of interest, by decomposition.

Reads along an axis have the shape [regions, bins, reads]. The reads of both axes combine to a table of
[regions · bins, reads], the same for all channels.
"""

from __future__ import annotations

import numpy as np

from graphopt import ir
from graphopt.autodiff.building_blocks.scatter import number_range
from graphopt.autodiff.graph_builder import GraphBuilder
from graphopt.autodiff.primal_node import PrimalNode
from graphopt.autodiff.reverse_mode import decomposition, vjp_of_decomposition
from graphopt.autodiff.rule_registry import Cotangents, gradient
from graphopt.util.lazy_dataclass import dataclass


@decomposition("RoiAlign")
def roi_align(op: GraphBuilder, node: PrimalNode) -> ir.Value:
    """By decomposition into products with bilinear weights, or a Gather of the maximal samples."""
    return _averages(op, node) if node.attribute("mode", "avg") == "avg" else _maxima(op, node)


@gradient("MaxRoiPool")
def max_roi_pool(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """dy scatter-added at the positions of the maxima."""
    rows, columns = _cells(op, node, 2), _cells(op, node, 3)
    image = op.cast(op.Gather(node.input(1), op.constant(np.int64(0)), axis=1), ir.DataType.INT64)

    def decompose() -> ir.Value:
        found = _best(op, node, rows, columns, image)
        # y differs for an empty bin, and for a maximum below onnxruntime's initial value
        return op.only_where(op.Equal(found, node.y), found)

    return vjp_of_decomposition(op, node, [dy], decompose)


@dataclass
class _Reads:
    """The reads of regions along an axis, [regions, bins, reads].

    Attributes:
        positions: int64 positions.
        weights: factors of the elements; ``None`` for 1.
        exist: whether each read exists, because bins may have different numbers of reads; ``None`` if all
            exist.
        bins: the number of bins.
    """

    positions: ir.Value
    weights: ir.Value | None
    exist: ir.Value | None
    bins: int


@dataclass
class _Samples:
    """The samples of RoiAlign along an axis, [regions, bins, samples].

    Attributes:
        at: the positions, clamped to x.
        reach: whether each sample is at most 1 element outside of x; other samples are zero.
        exist: as for :class:`_Reads`.
        share: the weight of a sample in a mean, which broadcasts against the positions.
        bins: the number of bins.
    """

    at: ir.Value
    reach: ir.Value
    exist: ir.Value | None
    share: ir.Value
    bins: int


def _samples(op: GraphBuilder, node: PrimalNode, axis: int) -> _Samples:
    """The samples along ``axis`` of x, as the standard defines them."""
    rois = node.input(1)
    bins = int(node.attribute("output_height" if axis == 2 else "output_width", 1))
    ratio = int(node.attribute("sampling_ratio", 0))
    shifted = node.attribute("coordinate_transformation_mode", "output_half_pixel") == "half_pixel"
    corners = op.Mul(rois, float(node.attribute("spatial_scale", 1.0)))
    if shifted:
        corners = op.Sub(corners, 0.5)
    columns = op.Split(corners, [1, 1, 1, 1], axis=1, outputs=4)  # order of the columns: x, y, x, y
    first, last = (op.Unsqueeze(column, [2]) for column in columns[3 - axis :: 2])
    length = op.Sub(last, first)
    if not shifted:
        length = op.Max(length, 1.0)
    size = op.Div(length, float(bins))
    exist: ir.Value | None = None
    if ratio > 0:
        numbers, count = _arange(op, rois, ratio), op.number(float(ratio), rois)
    else:
        count = op.Ceil(size)
        numbers = _below(op, count)
        exist = op.Less(numbers, count)
        count = op.Max(count, 1.0)
    starts = op.Add(first, op.Mul(size, op.Unsqueeze(_arange(op, rois, bins), [1])))
    at = op.Add(starts, op.Div(op.Mul(op.Add(numbers, 0.5), size), count))
    end = op.size_as(op.dim(node.x, axis), rois)
    reach = op.And(op.GreaterOrEqual(at, -1.0), op.LessOrEqual(at, end))
    if exist is not None:
        reach = op.And(reach, exist)
        exist = op.Expand(exist, op.Shape(at))
    return _Samples(op.Min(op.Max(at, 0.0), op.Sub(end, 1.0)), reach, exist, op.Reciprocal(count), bins)


def _averages(op: GraphBuilder, node: PrimalNode) -> ir.Value:
    """RoiAlign by averages: a mean of bilinear interpolations is a product with a matrix for each axis."""
    x, rois = node.x, node.input(1)
    rows, columns = _matrix(op, node, 2), _matrix(op, node, 3)
    images = number_range(op, op.dim(x, 0))
    picks = op.cast_like(op.Equal(op.Unsqueeze(node.input(2), [1]), images), x)  # [regions, images]
    of_images = op.Flatten(op.Mul(op.Unsqueeze(rows, [2]), op.Unsqueeze(picks, [1, 3])), axis=2)
    lines = op.Flatten(op.Transpose(x, perm=[0, 2, 1, 3]), axis=2)  # [images · rows, channels · columns]
    sizes = op.dim(rois, 0), int(node.attribute("output_height", 1)), op.dim(x, 1), op.dim(x, 3)
    bands = op.reshape(op.MatMul(of_images, lines), op.shape(*sizes))
    across = op.Unsqueeze(op.Transpose(columns, perm=[0, 2, 1]), [1])
    return op.Transpose(op.MatMul(bands, across), perm=[0, 2, 1, 3])


def _matrix(op: GraphBuilder, node: PrimalNode, axis: int) -> ir.Value:
    """The weights [regions, bins, positions] along ``axis`` of x."""
    samples = _samples(op, node, axis)
    cells = op.cast_like(number_range(op, op.dim(node.x, axis)), node.x)
    distance = op.Abs(op.Sub(op.Unsqueeze(samples.at, [3]), cells))
    near = op.Max(op.Sub(op.number(1.0, distance), distance), 0.0)
    weights = op.ReduceSum(op.only_where(op.Unsqueeze(samples.reach, [3]), near), [2], keepdims=0)
    return op.Mul(weights, samples.share)


def _maxima(op: GraphBuilder, node: PrimalNode) -> ir.Value:
    """RoiAlign by maxima of the weighted elements at the corners around the samples."""
    rows, columns = _corners(op, node, 2), _corners(op, node, 3)
    return _best(op, node, rows, columns, op.cast(node.input(2), ir.DataType.INT64))


def _corners(op: GraphBuilder, node: PrimalNode, axis: int) -> _Reads:
    """The positions before and after each sample along ``axis`` of x."""
    samples = _samples(op, node, axis)
    at = samples.at
    before = op.Floor(at)
    after = op.Min(op.Add(before, 1.0), op.Sub(op.size_as(op.dim(node.x, axis), at), 1.0))
    part = op.Sub(at, before)
    weights = op.Concat(op.Sub(op.number(1.0, at), part), part, axis=2)
    reach = op.Concat(samples.reach, samples.reach, axis=2)
    exist = None if samples.exist is None else op.Concat(samples.exist, samples.exist, axis=2)
    positions = op.cast(op.Concat(before, after, axis=2), ir.DataType.INT64)
    return _Reads(positions, op.only_where(reach, weights), exist, samples.bins)


def _cells(op: GraphBuilder, node: PrimalNode, axis: int) -> _Reads:
    """The positions in each bin of MaxRoiPool along ``axis`` of x, as onnxruntime computes them."""
    rois = node.input(1)
    bins = int(node.attribute("pooled_shape")[axis - 2])
    scaled = op.Mul(rois, float(node.attribute("spatial_scale", 1.0)))
    rounded = op.Mul(op.Sign(scaled), op.Floor(op.Add(op.Abs(scaled), 0.5)))  # rounds halves away from zero
    columns = op.Split(rounded, [1, 1, 1, 1, 1], axis=1, outputs=5)  # order of the columns: image, x, y, x, y
    first, last = (op.Unsqueeze(column, [2]) for column in columns[4 - axis :: 2])
    size = op.Div(op.Max(op.Add(op.Sub(last, first), 1.0), 1.0), float(bins))
    number, end = op.Unsqueeze(_arange(op, rois, bins), [1]), op.size_as(op.dim(node.x, axis), rois)
    start = op.Min(op.Max(op.Add(op.Floor(op.Mul(number, size)), first), 0.0), end)
    stop = op.Min(op.Max(op.Add(op.Ceil(op.Mul(op.Add(number, 1.0), size)), first), 0.0), end)
    positions = op.Add(start, _below(op, op.Sub(stop, start)))
    inside = op.Min(positions, op.Sub(end, 1.0))
    return _Reads(op.cast(inside, ir.DataType.INT64), None, op.Less(positions, stop), bins)


def _best(op: GraphBuilder, node: PrimalNode, rows: _Reads, columns: _Reads, image: ir.Value) -> ir.Value:
    """The largest weighted element of each bin, [regions, channels, bins, bins].

    Args:
        image: for each region, the index of its image in x.
    """
    x, lowest = node.x, op.number(np.finfo(op.dtype(node.x).numpy()).min, node.x)
    sizes = op.shape_of(x)
    image_size, plane_size, row_size = (
        op.ReduceProd(op.Slice(sizes, [axis], [4]), keepdims=1) for axis in (1, 2, 3)
    )
    start = op.Unsqueeze(op.Mul(image, image_size), [1, 2])
    down = op.Add(op.Mul(rows.positions, row_size), start)
    positions = _combine_reads(op, "Add", down, columns.positions)
    planes = op.Mul(number_range(op, op.dim(x, 1)), plane_size)
    numbers = op.Reshape(x, [-1])
    values = op.Gather(numbers, op.Add(op.Unsqueeze(positions, [1]), op.Unsqueeze(planes, [1])), axis=0)
    weights = exist = None
    if rows.weights is not None and columns.weights is not None:
        weights = _combine_reads(op, "Mul", rows.weights, columns.weights)
        values = op.Mul(values, op.Unsqueeze(weights, [1]))
    if rows.exist is not None and columns.exist is not None:
        exist = op.Unsqueeze(_combine_reads(op, "And", rows.exist, columns.exist), [1])
        values = op.Where(exist, values, lowest)
    best = op.ArgMax(values, axis=2, keepdims=0)  # [regions · bins, channels]
    found = op.Gather(numbers, op.Add(op.GatherElements(positions, best, axis=1), planes), axis=0)
    if weights is not None:
        found = op.Mul(found, op.GatherElements(weights, best, axis=1))
    shape = op.shape(op.dim(node.input(1), 0), rows.bins, columns.bins, op.dim(x, 1))
    return op.Transpose(op.reshape(found, shape), perm=[0, 3, 1, 2])


def _combine_reads(op: GraphBuilder, combine: str, rows: ir.Value, columns: ir.Value) -> ir.Value:
    """The reads of both axes, [regions · bins, reads], from the reads of each, [regions, bins, reads]."""
    both = op.node(combine, [op.Unsqueeze(rows, [2, 4]), op.Unsqueeze(columns, [1, 3])])
    return op.Flatten(both, axis=3)


def _arange(op: GraphBuilder, like: ir.Value, count: int) -> ir.Value:
    """0, 1, … below ``count``."""
    return op.constant(np.arange(count, dtype=op.dtype(like).numpy()))


def _below(op: GraphBuilder, counts: ir.Value) -> ir.Value:
    """0, 1, … below the largest of ``counts``; at least 0."""
    whole = op.cast(op.Reshape(counts, [-1]), ir.DataType.INT64)  # onnxruntime has no float16 Range
    most = op.ReduceMax(op.Concat(whole, [1], axis=0), keepdims=1)  # there may be no regions
    return op.cast_like(number_range(op, most), counts)
