"""Reference semantics of the loop IR: an interpreter in numpy, the reference for tests of generated code.

Floats have single precision, and each instruction rounds its result, as in kernels; with ``wide``, floats
have double precision. Transcendental functions and sums are computed in double precision in both modes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from graphopt.fusion.loops.instructions import OPS
from graphopt.fusion.loops.ir import Access, Element, Instruction, Kernel, Segment, Size

#: The numpy type of each element type.
TYPES: dict[Element, Any] = {
    Element.F32: np.float32,
    Element.U8: np.uint8,
    Element.I8: np.int8,
    Element.I32: np.int32,
    Element.I64: np.int64,
    Element.BOOL: np.bool_,
    Element.F16: np.float16,
    Element.BF16: ml_dtypes.bfloat16,
}


def run(kernel: Kernel, inputs: Sequence[np.ndarray], wide: bool = False) -> list[np.ndarray]:
    """The outputs of ``kernel`` for ``inputs``.

    Args:
        inputs: arrays with the types and shapes of the input ports.
    """
    symbols = [inputs[symbol.input].shape[symbol.axis] for symbol in kernel.symbols]
    outputs = [
        np.zeros([number(dim, symbols) for dim in port.dims], TYPES[port.element]) for port in kernel.outputs
    ]
    with np.errstate(all="ignore"):
        for segment in kernel.segments:
            _SegmentRun(kernel, segment, inputs, outputs, symbols, wide).run()
    return outputs


def number(size: Size, symbols: Sequence[int]) -> int:
    """``size`` for given values of the symbols."""
    product = size.factor
    for symbol in size.symbols:
        product *= symbols[symbol]
    return product


class _SegmentRun:
    """The evaluation of one segment: each value is an array with one axis per axis of the kernel."""

    def __init__(
        self,
        kernel: Kernel,
        segment: Segment,
        inputs: Sequence[np.ndarray],
        outputs: Sequence[np.ndarray],
        symbols: Sequence[int],
        wide: bool,
    ) -> None:
        self.kernel, self.segment, self.inputs, self.outputs = kernel, segment, inputs, outputs
        self.symbols, self.float = symbols, np.float64 if wide else np.float32
        self.ranges = []
        for index, bounds in enumerate(kernel.bounds(segment)):
            start, stop = (number(size, symbols) for size in bounds)
            shape = [1] * len(kernel.axes)
            shape[index] = -1
            self.ranges.append(np.arange(start, stop, dtype=np.int64).reshape(shape))

    def run(self) -> None:
        values: list[np.ndarray] = []
        for step in self.segment.body:
            values.append(self.value(step, [values[arg] for arg in step.args]))
        for store in self.segment.stores:
            self.store(store.access, values[store.instruction])

    def store(self, access: Access, value: np.ndarray) -> None:
        indices = self.indices(access)
        port = self.kernel.outputs[access.port]
        points = [
            counter.shape
            for axis, counter in enumerate(self.ranges)
            if axis not in self.kernel.reduced or access.strides[axis].factor
        ]
        full = np.broadcast_shapes(indices.shape, value.shape, *points)
        flat = self.outputs[access.port].reshape(-1)
        elements = np.broadcast_to(value, full).reshape(-1).astype(TYPES[port.element])
        flat[np.broadcast_to(indices, full).reshape(-1)] = elements

    def indices(self, access: Access) -> np.ndarray:
        """Indices into the flat port."""
        found = np.full([1] * len(self.kernel.axes), number(access.offset, self.symbols), np.int64)
        for stride, counter in zip(access.strides, self.ranges, strict=True):
            if stride.factor:
                found = found + number(stride, self.symbols) * counter
        return found

    def value(self, step: Instruction, args: list[np.ndarray]) -> np.ndarray:
        op = OPS[step.op]
        dtype = self.float if step.element is Element.F32 else TYPES[step.element]
        scalar = [1] * len(self.kernel.axes)
        if step.is_reduction:
            return self.reduction(step.op.removeprefix("reduce_"), args[0], dtype)
        if step.access is not None:
            indices = self.indices(step.access)
            data = self.inputs[step.access.port].reshape(-1)
            return data[indices].astype(dtype) if indices.size else np.zeros(indices.shape, dtype)
        if step.op == "constant":
            exact = np.float32 if step.element.is_float else dtype
            return np.full(scalar, step.value).astype(exact).astype(dtype)
        if step.size is not None:
            return np.full(scalar, number(step.size, self.symbols)).astype(dtype)
        if step.op == "cast":
            if dtype in (np.uint8, np.int8) and args[0].dtype.kind == "f":
                return args[0].astype(np.int32).astype(dtype)
            return args[0].astype(dtype)
        if step.into is not None:
            return args[0].astype(np.float32).astype(TYPES[step.into]).astype(dtype)
        assert op.numpy is not None
        if op.precise and args[0].dtype.kind == "f":
            args = [arg.astype(np.float64) for arg in args]
        result: np.ndarray = op.numpy(*args)
        return result.astype(dtype)

    def reduction(self, op: str, value: np.ndarray, dtype: Any) -> np.ndarray:
        """``value`` reduced over the reduced axes, which keep size 1."""
        axes = self.kernel.reduced
        full = list(value.shape)
        for axis in axes:
            full[axis] = self.ranges[axis].size
        value = np.broadcast_to(value, full)
        if value.dtype == np.bool_:
            return (np.any if op in ("sum", "max") else np.all)(value, axis=axes, keepdims=True)
        if op in ("sum", "prod"):
            wide = np.float64 if value.dtype.kind == "f" else value.dtype
            total = (np.sum if op == "sum" else np.prod)(value, axis=axes, keepdims=True, dtype=wide)
            return np.asarray(total.astype(dtype))
        is_float = value.dtype.kind == "f"
        low, high = (-np.inf, np.inf) if is_float else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        extremum, initial = (np.max, low) if op == "max" else (np.min, high)
        return np.asarray(extremum(value, axis=axes, keepdims=True, initial=initial).astype(dtype))
