"""Pooling over windows and over whole channels, and MaxUnpool."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from graphopt import ir
from graphopt.autodiff.building_blocks.scatter import row_numbers, scatter_positions, scatter_rows
from graphopt.autodiff.graph_builder import GraphBuilder
from graphopt.autodiff.primal_node import PrimalNode
from graphopt.autodiff.rule_registry import Cotangents, gradient


class _Windows:
    """The windows of a pool, as ONNX defines and onnxruntime implements them.

    Window o of an axis covers the positions ``o * stride - begin + i * dilation`` for i below the kernel
    size; positions outside of x do not exist. In ceil mode the last windows may extend beyond the padding.
    """

    def __init__(self, op: GraphBuilder, node: PrimalNode) -> None:
        self.op = op
        self.node = node
        self.kernel: tuple[int, ...] = node.attribute("kernel_shape")
        once = (1,) * len(self.kernel)
        self.strides: tuple[int, ...] = node.attribute("strides") or once
        self.dilations: tuple[int, ...] = node.attribute("dilations") or once
        self.reach = [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True)]
        self.ceils = bool(node.attribute("ceil_mode", 0))
        auto = str(node.attribute("auto_pad", "NOTSET"))
        self.same = auto if auto.startswith("SAME") else ""
        self.pads: tuple[int, ...] = (0, 0) * len(self.kernel)
        if auto == "NOTSET":
            self.pads = node.attribute("pads") or self.pads
        if self.ceils and not self.same and self._ceils_in_vain():
            self.ceils = False
            op.cx.edit.set_attribute(node.raw, "ceil_mode", None)

    def _ceils_in_vain(self) -> bool:
        """Whether the number of windows is the same without ceil mode.

        A window that would start after the end of x is omitted, but onnxruntime's shape inference counts it
        and rejects operators that combine the result with values of the correct shape.
        """
        size, windows = (self._known_sizes(value) for value in (self.node.x, self.node.y))
        if size is None or windows is None:
            return False
        rank = len(self.kernel)
        room = size + self.pads[:rank] + self.pads[rank:] - self.reach
        return bool(np.all(room // self.strides + 1 == windows))

    @property
    def may_overlap(self) -> bool:
        """Whether windows may share elements."""
        return any(stride < reach for stride, reach in zip(self.strides, self.reach, strict=True))

    @property
    def are_whole(self) -> bool:
        """Whether all windows are within x."""
        return not (self.same or any(self.pads) or self.ceils)

    @property
    def may_miss(self) -> bool:
        """Whether a dilated window may cover no element of x."""
        shape = self.node.shape(self.node.x)
        for axis, (pad, dilation) in enumerate(zip(self.pads, self.dilations, strict=False), 2):
            size = shape[axis] if shape is not None else None
            if (pad or self.same) and dilation > 1 and not (isinstance(size, int) and size >= dilation):
                return True
        return False

    def spread(self, dy: ir.Value, weight: float = 1.0) -> ir.Value:
        """For each element of x, ``weight`` times the sum of ``dy`` over the windows that contain it."""
        if self.same and (set(self.dilations) != {1} or self._have_gaps()):
            raise self.node.refusal("runtimes disagree on the start of its windows")
        op, x = self.op, self.node.x
        if set(self.strides) == set(self.dilations) == {1}:
            return self._spread_by_pool(dy, weight)
        planes = op.reshape(dy, op.shape(-1, 1, *(op.dim(dy, axis + 2) for axis in range(len(self.kernel)))))
        ones = op.constant(np.full((1, 1, *self.kernel), weight, op.dtype(dy).numpy()))
        return op.reshape(self._conv_transpose(planes, ones), op.shape_of(x))

    def _conv_transpose(self, dy: ir.Value, ones: ir.Value) -> ir.Value:
        """ConvTranspose of ``dy`` to the spatial sizes of x."""
        op, rank = self.op, len(self.kernel)
        settings: dict[str, Any] = {"strides": self.strides, "dilations": self.dilations}
        size, windows = (self._known_sizes(value) for value in (self.node.x, self.node.y))
        if size is not None and windows is not None:
            covered = (windows - 1) * self.strides + self.reach
            begin = (
                self._pads_before(np.maximum(covered - size, 0)) if self.same else np.array(self.pads[:rank])
            )
            left = size + begin - covered  # positive if the windows end before x does
            pads = [*begin.tolist(), *np.maximum(-left, 0).tolist()]
            return op.ConvTranspose(
                dy, ones, **settings, pads=pads, output_padding=np.maximum(left, 0).tolist()
            )
        room = [stride - 1 for stride in self.strides]  # maximum number of uncovered elements
        whole, sizes = op.ConvTranspose(dy, ones, **settings, output_padding=room), self.sizes(self.node.x)
        first: Any = list(self.pads[:rank])
        if self.same:
            covered = op.Add(op.Mul(op.Sub(self.sizes(dy), 1), list(self.strides)), list(self.reach))
            first = self._pads_before(op.Max(op.Sub(covered, sizes), 0))
        last = sizes if not self.same and not any(first) else op.Add(sizes, first)
        return op.Slice(whole, first, last, list(range(2, rank + 2)))

    def _have_gaps(self) -> bool:
        """Whether there are elements between windows."""
        return any(reach < stride for stride, reach in zip(self.strides, self.reach, strict=True))

    def _spread_by_pool(self, dy: ir.Value, weight: float) -> ir.Value:
        """:meth:`spread` for strides of 1, by a pool, which is many times faster than ConvTranspose."""
        inside = [k - 1 - pad for k, pad in zip(self.kernel * 2, self.pads, strict=True)]
        if self.same:
            less, more = [(k - 1) // 2 for k in self.kernel], [k // 2 for k in self.kernel]
            inside = [*more, *less] if self.same == "SAME_UPPER" else [*less, *more]
        means = self.op.AveragePool(dy, kernel_shape=self.kernel, pads=inside, count_include_pad=1)
        factor = weight * prod(self.kernel)
        return means if abs(factor - 1.0) < 1e-9 else self.op.Mul(means, factor)

    def _pads_before(self, pads: Any) -> Any:
        """The pads before x, given the sums of the pads at both ends."""
        odd = self.same == "SAME_LOWER"
        if isinstance(pads, np.ndarray):
            return (pads + odd) // 2
        return self.op.Div(self.op.Add(pads, 1) if odd else pads, 2)

    def _known_sizes(self, x: ir.Value) -> np.ndarray | None:
        shape = self.node.shape(x)
        sizes = [dim for dim in shape[2:] if isinstance(dim, int)] if shape is not None else []
        return np.array(sizes, np.int64) if len(sizes) == len(self.kernel) else None

    def sizes(self, x: ir.Value) -> ir.Value:
        """The spatial sizes of ``x``, an int64 vector."""
        return self.op.shape(*(self.op.dim(x, axis + 2) for axis in range(len(self.kernel))))


@gradient("MaxPool")
def max_pool(op: GraphBuilder, node: PrimalNode, dy: ir.Value, _: Any = None) -> Cotangents:
    """dy scatter-added at the indices of the maxima."""
    x, windows = node.x, _Windows(op, node)
    positions = node.output(1)
    if windows.may_miss:
        least = float(np.finfo(op.dtype(dy).numpy()).min)  # the result of an empty window
        dy = op.Where(op.Equal(node.y, least), op.number(0.0, dy), dy)
    dx = scatter_positions(op, x, positions, dy, add=windows.may_overlap)
    if not node.attribute("storage_order", 0):
        return dx
    backwards = [0, 1, *range(len(windows.kernel) + 1, 1, -1)]
    return op.Transpose(op.reshape(dx, op.shape(*(op.dim(x, axis) for axis in backwards))), perm=backwards)


@gradient("AveragePool")
def average_pool(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """Σ dy / n over the windows that contain an element, with the number n of elements of a window."""
    windows = _Windows(op, node)
    counts_all = bool(node.attribute("count_include_pad", 0))
    if windows.are_whole or (counts_all and not windows.ceils):
        return windows.spread(dy, 1.0 / prod(windows.kernel))
    if windows.ceils or set(windows.dilations) != {1}:
        op.require_opset(18)
    # LpPool of ones counts the existing elements; AveragePool of ones is their fraction
    sizes = op.Concat([1, 1], windows.sizes(node.x), axis=0)
    ones = op.ConstantOfShape(sizes, value=np.ones(1, op.dtype(dy).numpy()))
    settings = dict(node.raw.attributes)
    settings.pop("count_include_pad", None)
    exist = op.Max(op.node("LpPool", [ones], {**settings, "p": 1}), 1.0)
    if counts_all:
        dy = op.Mul(dy, op.node("AveragePool", [ones], dict(node.raw.attributes)))
    return windows.spread(op.Div(dy, exist))


@gradient("LpPool")
def lp_pool(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """sign(x) |x|^(p-1) Σ dy / y^(p-1) over the windows that contain an element."""
    p = int(node.attribute("p", 2))
    return _of_power(op, node, p, _Windows(op, node).spread(_over_power(op, node, p, dy)))


@gradient("GlobalAveragePool")
def global_average_pool(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """dy / n for each element."""
    shape = node.cx.shape(node.x)
    sizes = None if shape is None else ir.all_ints(shape[2:])
    if sizes is not None:
        count: Any = float(prod(sizes))
    else:
        count = op.cast_like(op.Div(op.Size(node.x), op.Max(op.Size(dy), 1)), dy)
    return op.expand_like(op.Div(dy, count), node.x)


@gradient("GlobalMaxPool")
def global_max_pool(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """dy, in equal shares, for the elements that equal y."""
    axes = list(range(2, node.rank(node.x)))
    hits = op.cast_like(op.Equal(node.x, node.y), dy)
    return op.Mul(hits, op.Div(dy, op.ReduceSum(hits, axes, keepdims=1)))


@gradient("GlobalLpPool")
def global_lp_pool(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """sign(x) |x|^(p-1) dy / y^(p-1)."""
    p = int(node.attribute("p", 2))
    return _of_power(op, node, p, _over_power(op, node, p, dy))


def _over_power(op: GraphBuilder, node: PrimalNode, p: int, dy: ir.Value) -> ir.Value:
    """dy / y^(p-1), with 1 for each y that is 0: all elements of its window are 0."""
    if p == 1:
        return dy
    y = op.Where(op.Equal(node.y, 0.0), op.number(1.0, node.y), node.y)
    return op.Div(dy, y if p == 2 else op.Pow(y, float(p - 1)))


def _of_power(op: GraphBuilder, node: PrimalNode, p: int, factor: ir.Value) -> ir.Value:
    """sign(x) |x|^(p-1) ``factor``."""
    if p == 1:
        return op.expand_like(op.Mul(op.Sign(node.x), factor), node.x)
    if p == 2:
        return op.Mul(node.x, factor)
    return op.Mul(op.Mul(node.x, op.Pow(op.Abs(node.x), float(p - 2))), factor)


@gradient("MaxUnpool")
def max_unpool(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """dy at the indices; 0 for elements that a later element overwrote."""
    positions = node.input(1)
    dx = op.Gather(op.Reshape(dy, [-1]), positions, axis=0)
    if not _Windows(op, node).may_overlap:
        return dx
    rank = node.rank(node.y)
    numbers = row_numbers(op, positions, rank)
    last = scatter_rows(op, node.y, positions, numbers, leading=rank, add=False)
    kept = op.Equal(op.Gather(op.Reshape(last, [-1]), positions, axis=0), numbers)
    return op.only_where(kept, dx)
