"""The builder that gradient rules receive as ``op``: appends nodes to a graph."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from graphopt import ir
from graphopt.autodiff import empty_tensor_workarounds
from graphopt.autodiff.node_builder import NodeBuilder, Operand, Size
from graphopt.autodiff.sequence_loop_builders import is_sequence, map_sequence

__all__ = ["GraphBuilder", "Operand", "Size"]

#: Filled tensors with at most this many elements are constants.
_SMALL = 16


class GraphBuilder(NodeBuilder):
    """Appends nodes and common combinations of them, such as broadcasts, reductions and filled tensors."""

    # Operators with workarounds ------------------------------------------------------------

    def MatMul(self, a: Operand, b: Operand) -> ir.Value:
        """See :func:`graphopt.autodiff.empty_tensor_workarounds.matmul`."""
        return empty_tensor_workarounds.matmul(self, a, b)

    def Einsum(self, *operands: Operand, equation: str) -> ir.Value:
        """See :func:`graphopt.autodiff.empty_tensor_workarounds.einsum`."""
        return empty_tensor_workarounds.einsum(self, operands, equation)

    def Expand(self, x: ir.Value, shape: ir.Value | Sequence[int]) -> ir.Value:
        """See :func:`graphopt.autodiff.empty_tensor_workarounds.expand`."""
        return empty_tensor_workarounds.expand(self, x, shape)

    # Shapes --------------------------------------------------------------------------------

    def reshape(self, x: ir.Value, shape: ir.Value | Sequence[int]) -> ir.Value:
        """``x`` reshaped; a 0 in ``shape`` is a size of 0, not a copied dim."""
        known = self.cx.static_ints(shape) if isinstance(shape, ir.Value) else shape
        zeros = known is None or 0 in known
        if zeros:
            self.require_opset(14)
        return self.Reshape(x, shape, allowzero=1 if zeros else None)

    def reshape_like(self, x: ir.Value, like: ir.Value) -> ir.Value:
        """``x`` with the shape of ``like``, which has the same number of elements."""
        return x if self.cx.facts.shape_equal(x, like) else self.reshape(x, self.shape_of(like))

    def expand_like(self, x: ir.Value, like: ir.Value) -> ir.Value:
        """``x`` broadcast to the shape of ``like``."""
        return x if self.cx.facts.shape_equal(x, like) else self.Expand(x, self.shape_of(like))

    def reduce_to(self, x: ir.Value, like: ir.Value, shaped_as: ir.Value | None = None) -> ir.Value:
        """Sum ``x`` over the axes along which ``like`` was broadcast: the transpose of a broadcast.

        Nothing is added if the shapes are known to be equal. The axes are constant if shape facts determine
        them; otherwise the model computes them.

        Args:
            shaped_as: a value known to have the shape of ``x``, for which more shape facts may be known.
        """
        big, small = self.cx.shape(shaped_as or x), self.cx.shape(like)
        if big is None or small is None or len(big) < len(small):
            return self._reduce_unknown(x, like)
        extra = len(big) - len(small)
        axes = list(range(extra))
        for axis, dim in enumerate(small, extra):
            if self.cx.facts.dim_equal(big[axis], dim) or (isinstance(dim, int) and dim != 1):
                continue
            if dim != 1:
                return self._reduce_by_shapes(x, like, extra)
            axes.append(axis)
        if not axes:
            return x
        if len(axes) in (extra, len(big)) and (len(axes) == extra or not small):
            return self.ReduceSum(x, axes, keepdims=0)
        summed = self.ReduceSum(x, axes, keepdims=1)
        return self.Squeeze(summed, list(range(extra))) if extra else summed

    def _reduce_by_shapes(self, x: ir.Value, like: ir.Value, extra: int) -> ir.Value:
        shape = self.shape_of(like)
        if extra:
            shape = self.Concat([1] * extra, shape, axis=0)
        summed = self._sum_where_one(x, shape)
        return self.Squeeze(summed, list(range(extra))) if extra else summed

    def _reduce_unknown(self, x: ir.Value, like: ir.Value) -> ir.Value:
        shape = self.Shape(like)
        missing = self.Sub(self.Shape(self.Shape(x)), self.Shape(shape))
        ones = self.ConstantOfShape(missing, value=np.ones(1, np.int64))
        summed = self._sum_where_one(x, self.Concat(ones, shape, axis=0))
        return self.reshape(summed, shape)

    def _sum_where_one(self, x: ir.Value, shape: ir.Value) -> ir.Value:
        """Sum over the axes where ``shape`` is 1 and the size of ``x`` is not."""
        broadcast = self.And(self.Equal(shape, 1), self.Not(self.Equal(self.Shape(x), 1)))
        axes = self.Squeeze(self.NonZero(broadcast), [0])
        return self.ReduceSum(x, axes, keepdims=1, noop_with_empty_axes=1)

    def mean(self, x: ir.Value, axes: list[int]) -> ir.Value:
        """The mean of ``x`` over ``axes``, which are kept with size 1."""
        if self.version < 18:
            return self.ReduceMean(x, axes=axes, keepdims=1)
        return self.ReduceMean(x, axes, keepdims=1)

    # Tensors -------------------------------------------------------------------------------

    def filled_like(self, x: ir.Value, number: float) -> ir.Value:
        """A tensor filled with ``number``, of the shape and element type of ``x``."""
        value = np.array([number]).astype(self.dtype(x).numpy())
        static = self.cx.static_shape(x)
        if static is not None and np.prod(static) <= _SMALL:
            return self.constant(np.full(static, value[0]))
        return self.ConstantOfShape(self.shape_of(x), value=value)

    def zeros_like(self, x: ir.Value) -> ir.Value:
        """Zeros of the shape and element type of ``x``; for a sequence, a sequence of zeros."""
        if is_sequence(x, self.cx):
            return map_sequence(self, x, lambda inner, index, element: inner.zeros_like(element))
        return self.filled_like(x, 0.0)

    def ones_like(self, x: ir.Value) -> ir.Value:
        """Ones of the shape and element type of ``x``."""
        return self.filled_like(x, 1.0)

    def sum_gradients(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """The sum of two gradients of the same value, a tensor or a sequence."""
        if is_sequence(a, self.cx):
            return map_sequence(
                self, a, lambda inner, index, element: inner.Add(element, inner.SequenceAt(b, index))
            )
        return self.Add(a, b)

    def sum_by_value(self, pairs: Iterable[tuple[ir.Value, ir.Value]]) -> dict[ir.Value, ir.Value]:
        """The sum of the gradients of each value, from pairs of a value and a gradient."""
        sums: dict[ir.Value, ir.Value] = {}
        for value, gradient in pairs:
            sums[value] = self.sum_gradients(sums[value], gradient) if value in sums else gradient
        return sums

    def identity_matrix(self, size: Size, like: ir.Value) -> ir.Value:
        """The identity matrix [size, size], in the element type of ``like``."""
        if isinstance(size, int):
            return self.constant(np.eye(size).astype(self.dtype(like).numpy()))
        # float32 represents 0 and 1 exactly
        unit = self.EyeLike(self.ConstantOfShape(self.shape(size, size)))
        return self.cast_like(unit, like)

    def cast(self, x: ir.Value, dtype: ir.DataType) -> ir.Value:
        """``x`` in the element type ``dtype``."""
        return x if self.cx.dtype(x) == dtype else self.Cast(x, to=dtype)

    def cast_like(self, x: ir.Value, like: ir.Value) -> ir.Value:
        """``x`` in the element type of ``like``."""
        return self.cast(x, self.dtype(like))

    def size_as(self, size: Size, like: ir.Value) -> ir.Value:
        """``size`` in the element type of ``like``."""
        return self.number(float(size), like) if isinstance(size, int) else self.cast_like(size, like)
