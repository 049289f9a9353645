"""Fourier transforms, whose gradients are the conjugate transforms."""

from __future__ import annotations

import numpy as np

from graphopt import ir
from graphopt.autodiff.building_blocks.scatter import scatter_elements
from graphopt.autodiff.graph_builder import GraphBuilder, Size
from graphopt.autodiff.primal_node import PrimalNode
from graphopt.autodiff.rule_registry import Cotangents, gradient, non_differentiable

windows = non_differentiable(
    "HannWindow", "HammingWindow", "BlackmanWindow", reason="it depends only on sizes", quiet=True
)
mel = non_differentiable("MelWeightMatrix", reason="frequencies are rounded to bins")

#: An axis: an int if it is static, otherwise an int64 vector of one element.
Axis = int | ir.Value


@gradient("DFT")
def dft(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """n IDFT(dy), or DFT(dy) / n for the inverse; inner bins of a one-sided transform count twice."""
    x = node.x
    inverse, onesided = bool(node.attribute("inverse", 0)), bool(node.attribute("onesided", 0))
    axis = _axis(op, node)
    points = _dim(op, node.y, axis)
    bins = points
    if onesided and not inverse:
        given = node.optional(1)
        points = _dim(op, x, axis) if given is None else _length_of_input(node, given, op)
        bins = points
    if inverse and onesided:
        spectrum = _transform(op, dy, axis, onesided=1)
        count = op.size_as(points, dy)
        bins = points // 2 + 1 if isinstance(points, int) else op.Add(op.Div(points, [2]), [1])
        dx = op.Mul(spectrum, op.Div(_shares(op, node, points, bins, axis), count))
    elif inverse:
        dx = op.Div(_transform(op, dy, axis), op.size_as(points, dy))
    else:
        length = points if onesided else None
        dx = op.Mul(_transform(op, dy, axis, length, inverse=1), op.size_as(points, dy))
    if node.optional(1) is not None or (inverse and onesided):
        dx = _pad_or_truncate(op, node, dx, axis, bins)
    return _parts_like(op, dx, x)


@gradient("STFT")
def stft(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """dsignal: windowed inverse transforms of dy, overlap-added; dwindow: Σ frames times these."""
    signal, window = node.x, node.optional(2)
    batch, length = op.dim(signal, 0), op.dim(signal, 1)
    frames = op.dim(node.y, 1)
    if not node.attribute("onesided", 1):
        points: Size = op.dim(node.y, 2)
    elif window is not None:
        points = op.dim(window, 0)
    else:
        given = node.optional(3)
        points = length if given is None else _length_of_input(node, given, op)
    pieces = _parts_like(op, _transform(op, dy, 2, points, inverse=1), signal)
    pieces = op.Mul(pieces, op.size_as(points, dy))  # (batch, frames, points, 1 or 2)
    zero, one = op.constant(np.int64(0)), op.constant(np.int64(1))
    step = op.Squeeze(op.Cast(node.input(1), to=ir.DataType.INT64))
    starts = op.Mul(op.Range(zero, op.scalar(frames), one), step)
    positions = op.Add(op.Unsqueeze(starts, [1]), op.Range(zero, op.scalar(points), one))
    dsignal = dwindow = None
    shaped = None if window is None else op.Unsqueeze(window, [1])
    if node.needs_grad(0):
        added = pieces if shaped is None else op.Mul(pieces, shaped)
        parts = op.dim(signal, 2)
        every = op.shape(batch, op.product(frames, points), parts)
        index = op.Expand(op.reshape(positions, op.shape(1, op.product(frames, points), 1)), every)
        dsignal = scatter_elements(op, op.shape_of(signal), index, op.reshape(added, every), axis=1)
    if window is not None and node.needs_grad(2):
        frames_of_signal = op.Gather(signal, positions, axis=1)
        dwindow = op.ReduceSum(op.Mul(frames_of_signal, pieces), [0, 1, 3], keepdims=0)
    return dsignal, None, dwindow


def _axis(op: GraphBuilder, node: PrimalNode) -> Axis:
    rank = node.rank(node.x)
    if node.version < 20:
        return int(node.attribute("axis", 1)) % rank
    given = node.optional(2)
    if given is None:
        return rank - 2
    known = node.ints(2)
    return op.Cast(op.Reshape(given, [1]), to=ir.DataType.INT64) if known is None else known[0] % rank


def _dim(op: GraphBuilder, x: ir.Value, axis: Axis) -> Size:
    return op.dim(x, axis) if isinstance(axis, int) else op.Gather(op.Shape(x), axis)


def _length_of_input(node: PrimalNode, length: ir.Value, op: GraphBuilder) -> Size:
    """The length given by a scalar input."""
    ints = node.cx.static_ints(length)
    return op.Cast(op.Reshape(length, [1]), to=ir.DataType.INT64) if ints is None else ints[0]


def _transform(
    op: GraphBuilder, x: ir.Value, axis: Axis, length: Size | None = None, **attributes: int
) -> ir.Value:
    """A DFT of x along an axis, padded with zeros to ``length``."""
    points = None if length is None else op.scalar(length)
    if op.version >= 20:
        return op.node("DFT", [x, points, op.scalar(axis)], attributes)
    return op.node("DFT", [x, points], {"axis": axis, **attributes})


def _shares(op: GraphBuilder, node: PrimalNode, points: Size, bins: Size, axis: Axis) -> ir.Value:
    """The multiplicity of each one-sided bin along the axis: 2, or 1 at both ends."""
    x = node.x
    type_ = op.dtype(x).numpy()
    if isinstance(points, int):
        position = np.arange(points // 2 + 1)
        shares = op.constant((2 - (position == 0) - (2 * position == points)).astype(type_))
    else:
        zero, one = op.constant(np.int64(0)), op.constant(np.int64(1))
        index = op.Range(zero, op.scalar(bins), one)
        ends = op.Or(op.Equal(index, zero), op.Equal(op.Mul(index, [2]), points))
        shares = op.Sub(2.0, op.cast_like(ends, x))
    rank = node.rank(x)
    if isinstance(axis, int):
        return op.Reshape(shares, [1] * axis + [-1] + [1] * (rank - axis - 1))
    every = op.constant(np.arange(rank))
    here = op.Equal(every, op.Mod(axis, [rank]))
    return op.Reshape(shares, op.Where(here, op.constant(np.int64(-1)), op.constant(np.int64(1))))


def _pad_or_truncate(op: GraphBuilder, node: PrimalNode, dx: ir.Value, axis: Axis, bins: Size) -> ir.Value:
    """``dx``, of ``bins`` elements, padded or truncated to the length of x."""
    size = _dim(op, node.x, axis)
    missing: Size
    if isinstance(axis, int) and isinstance(size, int) and isinstance(bins, int):
        if size < bins:
            return op.Slice(dx, [0], [size], [axis])
        missing = size - bins
        if not missing:
            return dx
    else:
        ends, have = op.shape(size), op.shape(bins)
        dx = op.Slice(dx, [0], ends, [axis] if isinstance(axis, int) else axis)
        missing = op.Max(op.Sub(ends, have), [0])
    if isinstance(axis, int):
        rank = node.rank(node.x)
        pads = op.shape(*[0] * (rank + axis), missing, *[0] * (rank - axis - 1))
        return op.Pad(dx, pads)
    return op.Pad(dx, op.Concat([0], missing, axis=0), None, axis)


def _parts_like(op: GraphBuilder, dx: ir.Value, x: ir.Value) -> ir.Value:
    """The real part of ``dx``, or both parts, like ``x``."""
    parts = op.dim(x, -1)
    if parts == 2:
        return dx
    return op.Slice(dx, [0], [1] if parts == 1 else parts, [-1])
