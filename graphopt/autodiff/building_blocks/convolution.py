"""The geometry of a Conv or ConvTranspose, and the three linear maps that follow from it.

Positions and pads are as in the ONNX specification. If the specification does not define which end has the
larger half of the pads, onnxruntime's choice applies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

import numpy as np

from graphopt import ir
from graphopt.autodiff.graph_builder import GraphBuilder, Size
from graphopt.autodiff.primal_node import PrimalNode
from graphopt.util.lazy_dataclass import dataclass

#: Kernels with at most this many positions are correlated by matrix products. The alternative is a Conv with
#: the narrow array as kernels. On one core, the products take 1/14 to 1/7 of the time of the Conv for 1x1
#: kernels, and 1/2 to 4/5 for 3x3. For larger kernels, and for kernels with one channel, they take 4/5 to
#: 7/5, and need many more nodes.
_FEW = 9
#: The end of an axis, for Slice.
_END = int(np.iinfo(np.int64).max)


@dataclass
class Axis:
    """An axis: in window o, kernel element j is at position ``stride * o + dilation * j - before``.

    Attributes:
        kernel: the kernel size; ``None`` if it is unknown.
        before, after: the pads; ``None`` if they depend on unknown sizes.
        left: the number of positions at the end, less than a stride, that no window covers; ``None`` if it is
            unknown.
    """

    stride: int
    dilation: int
    kernel: int | None
    before: int | None
    after: int | None
    left: int | None = 0

    @property
    def extent(self) -> int | None:
        """The number of positions that the kernel spans."""
        return None if self.kernel is None else (self.kernel - 1) * self.dilation + 1

    @property
    def most_left(self) -> int:
        """The largest possible value of ``left``."""
        return self.stride - 1 if self.left is None else self.left

    def halve(self, margins: int | None, *, upper: bool) -> None:
        """Divide ``margins`` between both ends; the larger half is at the end if ``upper``."""
        if margins is None:
            self.before = self.after = None
        else:
            margins = max(margins, 0)
            self.before = margins // 2 if upper else (margins + 1) // 2
            self.after = margins - self.before


@dataclass
class Moves:
    """The windows of a wide array, one for each position of a narrow array.

    :meth:`gather` is Conv, :meth:`scatter` is ConvTranspose, and :meth:`correlate` is the gradient of
    kernels.

    Attributes:
        w: the kernels, [channels of the narrow array, channels of the wide array / group, *kernel].
        before: the pads before the spatial axes, an int64 vector, if any are unknown.
    """

    op: GraphBuilder
    w: ir.Value
    group: int
    axes: list[Axis]
    before: ir.Value | None = None

    # From nodes ----------------------------------------------------------------------------

    @classmethod
    def of_conv(cls, op: GraphBuilder, node: PrimalNode, y: ir.Value) -> Moves:
        """The windows of a Conv whose output has the shape of ``y``."""
        moves, auto = cls._of(op, node), node.attribute("auto_pad", "NOTSET")
        for axis, size in zip(moves.axes, _known_sizes(node, node.x, moves.rank), strict=True):
            stride, extent = axis.stride, axis.extent
            if auto.startswith("SAME"):
                margins = None
                if extent is not None and stride == 1:
                    margins = extent - 1
                elif extent is not None and size is not None:
                    margins = (math.ceil(size / stride) - 1) * stride + extent - size
                axis.halve(margins, upper=auto == "SAME_UPPER")
            if stride > 1:
                axis.left = None
                if extent is not None and size is not None and axis.before is not None:
                    axis.left = (size + axis.before + (axis.after or 0) - extent) % stride
        if moves._pads is None:
            moves._halve(op.Sub(moves._reach(y), moves._sizes(node.x)), upper=auto == "SAME_UPPER")
        return moves

    @classmethod
    def of_conv_transpose(cls, op: GraphBuilder, node: PrimalNode) -> Moves:
        """The windows of a ConvTranspose."""
        moves, auto = cls._of(op, node), node.attribute("auto_pad", "NOTSET")
        further = node.attribute("output_padding") or (0,) * moves.rank
        shape = (node.attribute("output_shape") or ())[-moves.rank :]
        same = auto.startswith("SAME")
        for index, (axis, size) in enumerate(
            zip(moves.axes, _known_sizes(node, node.x, moves.rank), strict=True)
        ):
            axis.left = more = further[index]
            margins = None
            if axis.extent is not None and not shape:
                margins = axis.extent + more - axis.stride
            elif axis.extent is not None and size is not None:
                margins = (size - 1) * axis.stride + axis.extent + more - shape[index]
                axis.left = more - min(margins, 0)
            if same or shape:
                axis.halve(margins, upper=auto == "SAME_UPPER")
        if moves._pads is None:
            if shape:
                surplus = op.Add(moves._reach(node.x), np.array(further) - np.array(shape))
            else:
                surplus = op.Add(moves._reach(None), np.array(further))
            moves._halve(surplus, upper=auto == "SAME_UPPER")
        return moves

    @classmethod
    def _of(cls, op: GraphBuilder, node: PrimalNode) -> Moves:
        w, rank = node.input(1), rank_of(node) - 2
        kernel = node.attribute("kernel_shape") or _known_sizes(node, w, rank)
        strides, dilations = (node.attribute(name) or (1,) * rank for name in ("strides", "dilations"))
        explicit = node.attribute("auto_pad", "NOTSET") == "NOTSET"
        pads = (node.attribute("pads") if explicit else None) or (0,) * (2 * rank)
        each = zip(strides, dilations, kernel, pads[:rank], pads[rank:], strict=True)
        return cls(op, w, node.attribute("group", 1), [Axis(*values) for values in each])

    # The maps ------------------------------------------------------------------------------

    def gather(self, wide: ir.Value, narrow: ir.Value) -> ir.Value:
        """Conv of ``wide`` to the shape of ``narrow``."""
        pads = self._pads
        if pads is None:
            wide = self._padded(wide, narrow)
        return self._conv(wide, self.w, self._strides, self._dilations, pads)

    def scatter(self, narrow: ir.Value, wide: ir.Value) -> ir.Value:
        """ConvTranspose of ``narrow`` to the shape of ``wide``."""
        op, pads = self.op, self._pads
        if self._is_pointwise:  # a Conv is up to 1.5 times as fast in onnxruntime
            return op.Conv(narrow, self._swap_first_axes(self.w))
        known = pads is not None and all(axis.left is not None for axis in self.axes)
        full = op.ConvTranspose(
            narrow,
            self.w,
            strides=_unless(self._strides, 1),
            dilations=_unless(self._dilations, 1),
            pads=_unless(pads, 0),
            # extends the output by all uncovered positions; with output_shape, onnxruntime would ignore pads
            output_padding=_unless([axis.most_left if known else axis.stride - 1 for axis in self.axes], 0),
            group=self.group if self.group > 1 else None,
        )
        if known:
            return full
        if self.before is None:
            return op.Slice(full, [0] * self.rank, self._sizes(wide), self._spatial)
        return op.Slice(full, self.before, op.Add(self.before, self._sizes(wide)), self._spatial)

    def correlate(self, wide: ir.Value, narrow: ir.Value) -> ir.Value:
        """For each kernel element, Σ ``narrow`` times the elements of ``wide`` at its positions."""
        shape = self.op.cx.static_shape(self.w)
        if shape is None or shape[1] == 1 or math.prod(shape[2:]) > _FEW:
            return self._by_conv(wide, narrow)
        return self._by_products(wide, narrow, shape)

    def _by_conv(self, wide: ir.Value, narrow: ir.Value) -> ir.Value:
        """By a Conv with ``narrow`` as kernels, with batch and channel axes exchanged."""
        op, pads = self.op, self._pads
        if pads is None:
            wide = self._padded(wide, narrow)
        if self.group == 1:
            images = self._swap_first_axes(wide)
        else:
            sizes, own = [op.dim(wide, axis) for axis in self._spatial], op.dim(self.w, 1)
            split = op.reshape(wide, op.shape(-1, self.group, own, *sizes))
            moved = op.Transpose(split, perm=[2, 1, 0, *(axis + 1 for axis in self._spatial)])
            images = op.reshape(moved, op.shape(own, -1, *sizes))
        found = self._conv(images, self._swap_first_axes(narrow), self._dilations, self._strides, pads)
        if pads is not None and any(axis.most_left >= axis.dilation for axis in self.axes):
            found = op.Slice(found, [0] * self.rank, self._sizes(self.w), self._spatial)
        samples = op.dim(narrow, 0)
        if not isinstance(samples, int):  # onnxruntime leaves sums over no channels uninitialized
            found = op.only_where(op.Cast(samples, to=ir.DataType.BOOL), found)
        return self._swap_first_axes(found)

    def _by_products(self, wide: ir.Value, narrow: ir.Value, shape: Sequence[int]) -> ir.Value:
        """By matrix products: ``narrow`` times the elements of ``wide`` that kernel elements meet.

        Kernel elements along the last axis share a matrix; the others have a product each. Samples are summed
        within the products, which requires channels first, or after the products, if that moves fewer
        elements.
        """
        op, (channels, own) = self.op, shape[:2]
        apart = self.group > 1 or self._is_less_than_a_sample(wide)
        if apart:
            steps = self._positions(narrow)
            left = op.reshape(narrow, op.shape(-1, channels // self.group, steps))
            wide = self._padded(wide, narrow)
            if self.group > 1:
                wide = op.reshape(wide, op.shape(-1, own, *(op.dim(wide, axis) for axis in self._spatial)))
        else:
            left = op.Flatten(self._swap_first_axes(narrow), axis=1)
            wide = self._swap_first_axes(self._padded(wide, narrow))
        *others, last = self._spatial
        if shape[-1] > 1:
            parts = [self._met(wide, {last: position}) for position in range(shape[-1])]
            wide = op.Concat(*parts, axis=1 if apart else 0)
        else:
            others.append(last)
        found = []
        for positions in product(*(range(shape[axis]) for axis in others)):
            met = self._met(wide, dict(zip(others, positions, strict=True)))
            if apart:
                right = op.reshape(met, op.shape(-1, own * shape[-1], steps))
                found.append(op.MatMul(left, op.Transpose(right, perm=[0, 2, 1])))
            else:
                found.append(op.Gemm(left, op.Flatten(met, axis=1), transB=1))
        total = op.Concat(*found, axis=-1) if len(found) > 1 else found[0]
        if self.group > 1:
            total = op.Reshape(total, [-1, channels, own * math.prod(shape[2:])])
        if apart:
            total = op.ReduceSum(total, [0], keepdims=0)
        if math.prod(shape[2:]) == 1:
            return op.Reshape(total, list(shape))
        ordered = op.Reshape(total, [channels, *shape[2:], own])
        return op.Transpose(ordered, perm=[0, self.rank + 1, *range(1, self.rank + 1)])

    # Parts of them -------------------------------------------------------------------------

    def _conv(
        self,
        x: ir.Value,
        w: ir.Value,
        strides: Sequence[int],
        dilations: Sequence[int],
        pads: Sequence[int] | None,
    ) -> ir.Value:
        return self.op.Conv(
            x,
            w,
            strides=_unless(strides, 1),
            dilations=_unless(dilations, 1),
            pads=_unless(pads, 0),
            group=self.group if self.group > 1 else None,
        )

    def _met(self, wide: ir.Value, positions: dict[int, int]) -> ir.Value:
        """The elements of the padded ``wide`` that a kernel element meets along some axes."""
        slices = []
        for index, position in positions.items():
            axis = self.axes[index - 2]
            assert axis.kernel is not None
            after = (axis.kernel - 1 - position) * axis.dilation
            if axis.kernel > 1 or axis.stride > 1:
                # counted from the end: the last window ends less than a stride before the end
                slices.append((position * axis.dilation, -after if after else _END, index, axis.stride))
        if not slices:
            return wide
        return self.op.Slice(wide, *(list(column) for column in zip(*slices, strict=True)))

    def _padded(self, wide: ir.Value, narrow: ir.Value) -> ir.Value:
        """``wide`` with its pads."""
        op, pads = self.op, self._pads
        if pads is not None:
            spread = [0, 0, *pads[: self.rank], 0, 0, *pads[self.rank :]]
            return op.Pad(wide, spread) if any(pads) else wide
        after = op.Sub(op.Sub(self._reach(narrow), self._sizes(wide)), self.before)
        return op.Pad(wide, op.Concat([0, 0], self.before, [0, 0], after, axis=0))

    def _halve(self, margins: ir.Value, *, upper: bool) -> None:
        """:meth:`Axis.halve` for a vector of margins: sets ``before``."""
        op = self.op
        margins = op.Max(margins, 0)
        self.before = op.Div(margins if upper else op.Add(margins, 1), 2)

    def _reach(self, narrow: ir.Value | None) -> ir.Value:
        """The number of positions that all windows span; without ``narrow``, one window minus one stride."""
        op, strides, dilations = self.op, np.array(self._strides), np.array(self._dilations)
        extents = [axis.extent for axis in self.axes]
        if None in extents:
            beyond = op.Add(op.Mul(self._sizes(self.w), dilations), 1 - dilations - strides)
        else:
            beyond = op.constant(np.array(extents) - strides)
        return beyond if narrow is None else op.Add(op.Mul(self._sizes(narrow), strides), beyond)

    def _sizes(self, x: ir.Value) -> ir.Value:
        """The spatial sizes of ``x``, an int64 vector."""
        op = self.op
        known = ir.all_ints((op.cx.shape(x) or (None,))[2:]) if op.cx.rank(x) else None
        if known is not None:
            return op.constant(np.array(known, np.int64))
        return op.Shape(x, start=2) if op.version >= 15 else op.Slice(op.Shape(x), [2], [_END])

    def _positions(self, x: ir.Value) -> Size:
        """The number of spatial positions of ``x``."""
        known = self.op.cx.static_ints(sizes := self._sizes(x))
        return self.op.ReduceProd(sizes, keepdims=1) if known is None else math.prod(known)

    def _swap_first_axes(self, x: ir.Value) -> ir.Value:
        """``x`` with its first two axes exchanged."""
        return self.op.Transpose(x, perm=[1, 0, *self._spatial])

    def _is_less_than_a_sample(self, wide: ir.Value) -> bool:
        """Whether the kernels have at most as many elements as a sample of ``wide``; False if unknown."""
        w, shape = self.op.cx.static_shape(self.w), self.op.cx.shape(wide)
        sample = None if shape is None else ir.all_ints(shape[1:])
        return w is not None and sample is not None and math.prod(w) <= math.prod(sample)

    @property
    def rank(self) -> int:
        """The number of spatial axes."""
        return len(self.axes)

    @property
    def _spatial(self) -> list[int]:
        return list(range(2, self.rank + 2))

    @property
    def _strides(self) -> list[int]:
        return [axis.stride for axis in self.axes]

    @property
    def _dilations(self) -> list[int]:
        return [axis.dilation for axis in self.axes]

    @property
    def _pads(self) -> tuple[int, ...] | None:
        """All pads: first those before each axis, then those after; ``None`` if any are unknown."""
        return ir.all_ints([*(axis.before for axis in self.axes), *(axis.after for axis in self.axes)])

    @property
    def _is_pointwise(self) -> bool:
        """Whether windows are single positions, over all channels."""
        alone = all(axis.kernel == axis.stride == 1 for axis in self.axes)
        return alone and self.group == 1 and self._pads is not None and not any(self._pads)


def rank_of(node: PrimalNode) -> int:
    """The number of axes of x and W."""
    return node.rank(node.x if node.cx.rank(node.x) is not None else node.input(1))


def _known_sizes(node: PrimalNode, x: ir.Value, rank: int) -> tuple[int | None, ...]:
    """The spatial sizes of ``x``; ``None`` for unknown ones."""
    dims = (node.shape(x) or (None,) * (rank + 2))[2:]
    return tuple(int(dim) if isinstance(dim, int) else None for dim in dims)


def _unless(values: Sequence[int] | None, default: int) -> list[int] | None:
    """An attribute, omitted if all values are ``default``."""
    return None if values is None or set(values) == {default} else list(values)
