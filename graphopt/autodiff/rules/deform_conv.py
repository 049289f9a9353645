"""DeformConv: a convolution that samples x at offset positions."""

from __future__ import annotations

import math

import numpy as np

from graphopt import ir
from graphopt.autodiff.graph_builder import GraphBuilder, Size
from graphopt.autodiff.primal_node import PrimalNode
from graphopt.autodiff.reverse_mode import decomposition


@decomposition("DeformConv")
def deform_conv(op: GraphBuilder, node: PrimalNode) -> ir.Value:
    """By decomposition into GridSample and MatMul.

    Kernel elements form one axis: the samples are [batch * offset groups, channels of an offset group, kernel
    elements, points of y].
    """
    op.require_opset(20)  # an older GridSample supports only two spatial axes, in float32
    x, w, offset, bias, mask = node.x, node.input(1), node.input(2), node.optional(3), node.optional(4)
    rank, group, offset_group = node.rank(x) - 2, node.attribute("group"), node.attribute("offset_group")
    kernel = node.attribute("kernel_shape") or ir.all_ints((node.shape(w) or (None,) * 3)[2:])
    if kernel is None:
        raise node.refusal("the size of its kernels is unknown")
    count = math.prod(kernel)
    x_sizes, y_sizes = ([op.dim(value, axis) for axis in range(2, rank + 2)] for value in (x, offset))
    points = op.product(*y_sizes)
    moved = op.reshape(offset, op.shape(-1, count, rank, *y_sizes))
    along = []
    for axis, elements in enumerate(np.indices(kernel).reshape(rank, count)):
        positions = op.Add(
            op.Gather(moved, np.int64(axis), axis=2), _positions(op, node, axis, elements, y_sizes[axis])
        )
        # coordinates of GridSample range from -1 to 1
        scaled = op.Sub(op.Div(positions, _half(op, x_sizes[axis], moved)), 1.0)
        along.append(op.Unsqueeze(scaled, [-1]))
    grid = op.Concat(*reversed(along), axis=-1)
    grid = op.reshape(grid, op.shape(-1, op.product(count, y_sizes[0]), *y_sizes[1:], rank))
    channels = op.dim(x, 1)
    if offset_group > 1:
        channels = channels // offset_group if isinstance(channels, int) else op.Div(channels, [offset_group])
        x = op.reshape(x, op.shape(-1, channels, *x_sizes))
    read = op.GridSample(x, grid)
    if mask is not None:
        read = op.reshape(read, op.shape(-1, channels, count, points))
        read = op.Mul(read, op.reshape(mask, op.shape(-1, 1, count, points)))
    inner = op.product(count, op.dim(w, 1))
    kernels = op.reshape(w, op.shape(group, -1, inner))
    product = op.MatMul(kernels, op.reshape(read, op.shape(-1, group, inner, points)))
    y = op.reshape(product, op.shape(-1, op.dim(w, 0), *y_sizes))
    return y if bias is None else op.Add(y, op.Reshape(bias, [-1, *[1] * rank]))


def _positions(op: GraphBuilder, node: PrimalNode, axis: int, elements: np.ndarray, size: Size) -> ir.Value:
    """The positions, from the edge of x, at which kernel elements sample x along an axis without offsets.

    Args:
        elements: indices of the kernel elements along the axis.
        size: size of the axis of y.

    Returns:
        A tensor that broadcasts to [elements, *spatial axes of y].
    """
    rank, dtype = node.rank(node.x) - 2, op.dtype(node.input(2))
    stride, dilation = ((node.attribute(name) or (1,) * rank)[axis] for name in ("strides", "dilations"))
    before = (node.attribute("pads") or (0,) * rank)[axis]
    first = (elements * dilation - before + 0.5).reshape(-1, *[1] * rank)
    trailing = rank - 1 - axis
    if isinstance(size, int):
        steps = np.arange(0, size * stride, stride).reshape(-1, *[1] * trailing)
        return op.constant((first + steps).astype(dtype.numpy()))
    count = op.Mul(op.Squeeze(size, [0]), stride)
    steps_ = op.Cast(op.Range(np.int64(0), count, np.int64(stride)), to=dtype)
    if trailing:
        steps_ = op.Unsqueeze(steps_, list(range(1, trailing + 1)))
    return op.Add(steps_, first.astype(dtype.numpy()))


def _half(op: GraphBuilder, size: Size, like: ir.Value) -> ir.Value:
    """``size`` / 2, in the element type of ``like``."""
    return op.number(size / 2, like) if isinstance(size, int) else op.Mul(op.cast_like(size, like), 0.5)
