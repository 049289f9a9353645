"""Convolutions and pooling: dims from kernels, strides, dilations and padding."""

from __future__ import annotations

from collections.abc import Sequence

from graphopt import ir
from graphopt.analysis.shape_inference.node_facts import NodeFacts, shape_rule
from graphopt.analysis.shape_inference.value_facts import Fact, ShapeTuple
from graphopt.analysis.symbolic import Dim, ceildiv, dim_max, dim_min, floordiv


class _Window:
    """Kernel, strides, dilations and pads of a window that moves over the spatial axes."""

    def __init__(self, node: NodeFacts, kernel: Sequence[Dim], axes: int) -> None:
        self.kernel = node.attr_ints("kernel_shape") or kernel
        self.strides = node.attr_ints("strides") or (1,) * axes
        self.dilations = node.attr_ints("dilations") or (1,) * axes
        pads = node.attr_ints("pads") or (0,) * (2 * axes)
        self.before, self.after = pads[:axes], pads[axes:]
        self.mode = node.attr_str("auto_pad", "NOTSET")
        if self.mode == "VALID":
            self.before = self.after = (0,) * axes

    @property
    def same(self) -> bool:
        """Whether padding is automatic, so that the output has size ceil(input / stride)."""
        return self.mode in ("SAME_UPPER", "SAME_LOWER")

    def extent(self, axis: int) -> Dim:
        """The size of the dilated kernel."""
        return (self.kernel[axis] - 1) * self.dilations[axis] + 1


def _convolved(node: NodeFacts, spatial: ShapeTuple, kernel: Sequence[Dim]) -> list[Dim]:
    """The spatial dims of a convolution, which fails if the padded input is smaller than the kernel."""
    window = _Window(node, kernel, len(spatial))
    dims: list[Dim] = []
    for axis, size in enumerate(spatial):
        stride = window.strides[axis]
        if window.same:
            dims.append(ceildiv(size, stride))
        else:
            padded = size + window.before[axis] + window.after[axis]
            dims.append(floordiv(padded - window.extent(axis), stride) + 1)
    return dims


def _convolution(node: NodeFacts, x: int, w: int, dtype: ir.DataType | None) -> Fact:
    """[N, M, *convolved spatial dims], for X [N, C, ...] and W [M, C/groups, *kernel]."""
    shape, weights = node.shape(x), node.shape(w)
    if shape is None and weights is None:
        return Fact(dtype)
    if shape is None or weights is None:
        rank = len(shape or weights or ())
        known = node.fresh_shape(rank)
        if shape is not None:
            known = (shape[0], *known[1:])
        elif weights is not None:
            known = (known[0], weights[0], *known[2:])
        return Fact(dtype, known)
    return Fact(dtype, (shape[0], weights[0], *_convolved(node, shape[2:], weights[2:])))


@shape_rule("Conv", "DeformConv")
def conv(node: NodeFacts) -> Fact:
    return _convolution(node, 0, 1, node.dtype(0))


@shape_rule("FusedConv", domain=ir.MICROSOFT)
def fused_conv(node: NodeFacts) -> Fact:
    return _convolution(node, 0, 1, node.dtype(0))


@shape_rule("NhwcConv", domain=ir.MICROSOFT)
def nhwc_conv(node: NodeFacts) -> Fact:
    """X is [N, *spatial dims, C], W is [M, *kernel, C / groups]."""
    shape, weights = node.shape(0), node.shape(1)
    if shape is None or weights is None:
        rank = len(shape or weights or ())
        return Fact(node.dtype(0), node.fresh_shape(rank) if rank else None)
    return Fact(node.dtype(0), (shape[0], *_convolved(node, shape[1:-1], weights[1:-1]), weights[0]))


@shape_rule("QLinearConv", domain=ir.MICROSOFT)
def qlinear_conv_of_layout(node: NodeFacts) -> Fact:
    """Like QLinearConv; with ``channels_last``, X is [N, *spatial dims, C], but W the same."""
    shape, weights = node.shape(0), node.shape(3)
    if not node.attr_int("channels_last", 0) or shape is None or weights is None:
        return _convolution(node, 0, 3, node.dtype(7))
    return Fact(node.dtype(7), (shape[0], *_convolved(node, shape[1:-1], weights[2:]), weights[0]))


@shape_rule("ConvInteger")
def conv_integer(node: NodeFacts) -> Fact:
    return _convolution(node, 0, 1, ir.DataType.INT32)


@shape_rule("QLinearConv")
def qlinear_conv(node: NodeFacts) -> Fact:
    """The output has the dtype of its zero point."""
    return _convolution(node, 0, 3, node.dtype(7))


@shape_rule("ConvTranspose")
def conv_transpose(node: NodeFacts) -> Fact:
    """stride * (d - 1) + output_padding + extent - pads, or ``output_shape`` (ONNX: ConvTranspose)."""
    shape, weights = node.shape(0), node.shape(1)
    dtype = node.dtype(0)
    if shape is None or weights is None:
        known_rank = node.rank(0) or node.rank(1)
        return Fact(dtype, None if known_rank is None else node.fresh_shape(known_rank))
    axes = len(shape) - 2
    window = _Window(node, weights[2:], axes)
    output_padding = node.attr_ints("output_padding") or (0,) * axes
    output_shape = node.attr_ints("output_shape")
    channels = weights[1] * node.attr_int("group", 1)
    if output_shape:
        return Fact(dtype, (shape[0], channels, *output_shape[-axes:]))
    dims: list[Dim] = []
    for axis, size in enumerate(shape[2:]):
        stride, extent = window.strides[axis], window.extent(axis)
        grown = (size - 1) * stride + output_padding[axis] + extent
        if window.same:  # automatic padding never extends the output
            dims.append(dim_min(size * stride, grown))
        else:
            dims.append(grown - window.before[axis] - window.after[axis])
    return Fact(dtype, (shape[0], channels, *dims))


def _pooled(node: NodeFacts, spatial: ShapeTuple) -> list[Dim]:
    """The spatial dims of pooling, as onnxruntime computes them.

    Division truncates as in C: an input smaller than the kernel by less than a stride still has one window.
    With ``ceil_mode``, no window may start after the end of the input and its leading padding.
    """
    window = _Window(node, (), len(spatial))
    ceil = node.attr_int("ceil_mode", 0)
    dims: list[Dim] = []
    for axis, size in enumerate(spatial):
        stride = window.strides[axis]
        if window.same:
            dims.append(ceildiv(size, stride))
            continue
        room = size + window.before[axis] + window.after[axis] - window.extent(axis)
        if ceil:
            last = floordiv(size + window.before[axis] - 1, stride) + 1
            dims.append(dim_min(ceildiv(room, stride) + 1, last))
        else:
            # room / stride + 1, rounded towards zero, for nonnegative results
            dims.append(dim_max(floordiv(room, stride) + 1, dim_min(room + stride, 1), 0))
    return dims


@shape_rule("AveragePool", "LpPool")
def pool(node: NodeFacts) -> Fact:
    shape = node.shape(0)
    if shape is None:
        kernel = node.attr_ints("kernel_shape") or ()
        return Fact(node.dtype(0), node.fresh_shape(len(kernel) + 2))
    return Fact(node.dtype(0), (*shape[:2], *_pooled(node, shape[2:])))


def channels_last_pool(node: NodeFacts) -> Fact:
    """The result of pooling [N, *spatial dims, C]."""
    shape = node.shape(0)
    if shape is None:
        return Fact(node.dtype(0))
    return Fact(node.dtype(0), (shape[0], *_pooled(node, shape[1:-1]), shape[-1]))


@shape_rule("MaxPool")
def max_pool(node: NodeFacts) -> list[Fact]:
    """The largest elements and their indices."""
    result = pool(node)
    return [result, Fact(ir.DataType.INT64, result.shape)]


@shape_rule("GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool")
def global_pool(node: NodeFacts) -> Fact:
    """All spatial dims become 1."""
    shape = node.shape(0)
    if shape is None:
        return Fact(node.dtype(0))
    return Fact(node.dtype(0), (*shape[:2], *(1 for _ in shape[2:])))
