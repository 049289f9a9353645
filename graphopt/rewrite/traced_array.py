"""Arrays that record how they are computed from constants of the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from graphopt import ir
from graphopt.context import Context
from graphopt.util.lazy_dataclass import dataclass

#: The first opset version in which onnxruntime has kernels for all operators of expressions.
_EXPRESSIONS_SINCE = 8


@dataclass(frozen=True, eq=False)
class TracedArray:
    """An array computed from constants, and the expression that computes it.

    Arithmetic and the methods that move elements are those of numpy. If the array is computed from weights
    that change later (:mod:`graphopt.ir.constant_graph`), its contents must not decide a rewrite:
    :attr:`contents` is ``None``, and :meth:`require` states conditions on them.

    Attributes:
        array: the present contents.
        expression: computes the contents from constants of the model.
        depends: whether the array is computed from weights.
        conditions: expressions that must be true for the contents to be valid.
    """

    array: np.ndarray
    expression: ir.Expression
    depends: bool = False
    conditions: tuple[ir.Expression, ...] = ()

    @classmethod
    def of(cls, array: Any) -> TracedArray:
        """An array that does not depend on the model; a traced array is returned unchanged."""
        if isinstance(array, TracedArray):
            return array
        array = np.asarray(array)
        return cls(array, array)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape."""
        return self.array.shape

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return self.array.ndim

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.array.size

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return self.array.nbytes

    @property
    def dtype(self) -> np.dtype[Any]:
        """The element type."""
        return self.array.dtype

    @property
    def contents(self) -> np.ndarray | None:
        """The contents, on which a rewrite may depend; ``None`` if they change with weights."""
        return None if self.depends else self.array

    def require(self, condition: TracedArray) -> TracedArray | None:
        """This array, valid only if all elements of ``condition`` are true; ``None`` if one is false now."""
        if not np.all(condition.array):
            return None
        if not condition.depends:
            return self
        conditions = dict.fromkeys([*self.conditions, *condition.conditions, condition.all.expression])
        return replace(self, conditions=tuple(conditions))

    # Operators --------------------------------------------------------------------------------------

    def apply(
        self, op_type: str, array: np.ndarray, *others: TracedArray, attributes: dict[str, Any] | None = None
    ) -> TracedArray:
        """The result ``array`` of operator ``op_type``, applied to this array and ``others``."""
        operands = (self, *others)
        return TracedArray(
            np.asarray(array),
            ir.Operation(op_type, tuple(operand.expression for operand in operands), attributes or {}),
            any(operand.depends for operand in operands),
            tuple(dict.fromkeys(condition for operand in operands for condition in operand.conditions)),
        )

    def _like(self, other: Any) -> TracedArray:
        if isinstance(other, TracedArray):
            return other
        return TracedArray.of(np.asarray(other, self.dtype))

    def __add__(self, other: Any) -> TracedArray:
        other = self._like(other)
        return self.apply("Add", self.array + other.array, other)

    def __sub__(self, other: Any) -> TracedArray:
        other = self._like(other)
        return self.apply("Sub", self.array - other.array, other)

    def __mul__(self, other: Any) -> TracedArray:
        other = self._like(other)
        return self.apply("Mul", self.array * other.array, other)

    def __truediv__(self, other: Any) -> TracedArray:
        other = self._like(other)
        return self.apply("Div", self.array / other.array, other)

    def __matmul__(self, other: TracedArray) -> TracedArray:
        return self.apply("MatMul", self.array @ other.array, other)

    def __lt__(self, other: Any) -> TracedArray:
        other = self._like(other)
        return self.apply("Less", self.array < other.array, other)

    def __gt__(self, other: Any) -> TracedArray:
        return self._like(other) < self

    def __and__(self, other: TracedArray) -> TracedArray:
        return self.apply("And", self.array & other.array, other)

    def __invert__(self) -> TracedArray:
        return self.apply("Not", ~self.array)

    def __neg__(self) -> TracedArray:
        return self.apply("Neg", -self.array)

    def __abs__(self) -> TracedArray:
        return self.apply("Abs", np.abs(self.array))

    def sqrt(self) -> TracedArray:
        """The square roots."""
        return self.apply("Sqrt", np.sqrt(self.array))

    def maximum(self, other: Any) -> TracedArray:
        """The larger element of each pair."""
        other = self._like(other)
        return self.apply("Max", np.maximum(self.array, other.array), other)

    def astype(self, dtype: np.dtype[Any]) -> TracedArray:
        """The elements, converted to ``dtype``."""
        if dtype == self.dtype:
            return self
        return self.apply("Cast", self.array.astype(dtype), attributes={"to": ir.DataType.from_numpy(dtype)})

    def reshape(self, *dims: int) -> TracedArray:
        """The elements in another shape; one dim may be -1."""
        array = self.array.reshape(dims)
        if array.shape == self.shape:
            return self
        return self.apply("Reshape", array, TracedArray.of(np.array(array.shape, np.int64)))

    def transpose(self, perm: Sequence[int]) -> TracedArray:
        """The array with its axes in another order."""
        return self.apply(
            "Transpose", np.ascontiguousarray(self.array.transpose(perm)), attributes={"perm": list(perm)}
        )

    def broadcast_to(self, *dims: int) -> TracedArray:
        """The array repeated along axes of size 1, and along new leading axes."""
        if dims == self.shape:
            return self
        array = np.ascontiguousarray(np.broadcast_to(self.array, dims))
        return self.apply("Expand", array, TracedArray.of(np.array(dims, np.int64)))

    def largest(self, axes: Sequence[int] | None = None) -> TracedArray:
        """The largest element along ``axes`` (by default all), which are kept with size 1.

        The elements must not be negative; without elements, the result is 0.
        """
        over = tuple(range(self.ndim) if axes is None else axes)
        array = np.max(self.array, axis=over, keepdims=True, initial=0)
        if not self.size:
            return TracedArray.of(array)
        if not over:
            return self
        return self.apply("ReduceMax", array, attributes={"axes": list(over), "keepdims": 1})

    def sum(self, axis: int) -> TracedArray:
        """The sums along ``axis``, which is removed."""
        attributes = {"axes": [axis], "keepdims": 0}
        return self.apply("ReduceSum", self.array.sum(axis=axis), attributes=attributes)

    @cached_property
    def all(self) -> TracedArray:
        """Whether all elements of this array of booleans are true."""
        if not self.size:
            return TracedArray.of(np.True_)
        return ~(~self).astype(np.dtype(np.float32)).largest().reshape().astype(np.dtype(bool))

    def is_finite(self) -> TracedArray:
        """Whether each element is finite."""
        return abs(self) < np.inf


def concatenate(arrays: Sequence[TracedArray], axis: int) -> TracedArray:
    """The arrays, joined along ``axis``."""
    joined = np.concatenate([array.array for array in arrays], axis=axis)
    if len(arrays) == 1:
        return arrays[0]
    return arrays[0].apply("Concat", joined, *arrays[1:], attributes={"axis": axis})


def tensor_to_compute(value: ir.Value | None, graph: ir.Graph, cx: Context) -> ir.TensorProtocol | None:
    """The tensor of a constant from which a constant of ``graph`` may be computed.

    ``None`` if ``value`` is not constant; or if it depends on weights, and ``graph`` is not the main graph,
    because only constants of the main graph can be replaced by name, or its opset lacks operators of
    expressions.
    """
    is_recorded = graph is cx.model.graph and ir.standard_version(graph.opset_imports) >= _EXPRESSIONS_SINCE
    return ir.computable(value) if is_recorded else ir.constant_of(value)


def trace(value: ir.Value | None, graph: ir.Graph, cx: Context) -> TracedArray | None:
    """The contents of :func:`tensor_to_compute`."""
    tensor = tensor_to_compute(value, graph, cx)
    if value is None or tensor is None:
        return None
    depends = ir.depends_on_weights(value)
    (ir.read_to_compute if depends else ir.read)(value)
    return TracedArray(tensor.numpy(), value, depends)
