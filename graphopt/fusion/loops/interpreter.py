"""Reference semantics of kernels: an interpreter in numpy, which generated code is tested against.

Real numbers are held in single precision, and each instruction rounds its result, as kernels do; with
``wide`` they are held in double precision. Transcendental functions and sums are computed in double
precision in both modes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from graphopt.fusion.loops.ir import Element, Instruction, Kernel, Piece, Size

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

PRECISE: dict[str, Callable[..., Any]] = {
    "exp": np.exp,
    "log": np.log,
    "tanh": np.tanh,
    "sin": np.sin,
    "cos": np.cos,
    "sigmoid": lambda x: np.where(x < 0, np.exp(-np.abs(x)), 1) / (1 + np.exp(-np.abs(x))),
    "pow": np.power,
    "sqrt": np.sqrt,
}
_EXACT = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "min": np.minimum, "max": np.maximum,
    "neg": np.negative, "abs": np.abs, "floor": np.floor, "ceil": np.ceil, "round_even": np.rint,
    "trunc": np.trunc, "fmod": np.fmod, "lt": np.less, "le": np.less_equal, "eq": np.equal,
    "isnan": np.isnan, "isinf": np.isinf, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor, "not": np.invert,
}  # fmt: skip


def run(kernel: Kernel, inputs: Sequence[np.ndarray], wide: bool = False) -> list[np.ndarray]:
    """The outputs of ``kernel`` for ``inputs``, whose types and shapes must be those of its ports."""
    symbols = [inputs[symbol.input].shape[symbol.axis] for symbol in kernel.symbols]
    outputs = [
        np.zeros([number(dim, symbols) for dim in port.dims], TYPES[port.element]) for port in kernel.outputs
    ]
    with np.errstate(all="ignore"):
        for piece in kernel.pieces:
            _Run(kernel, piece, inputs, outputs, symbols, wide).run()
    return outputs


def number(size: Size, symbols: Sequence[int]) -> int:
    """What ``size`` is."""
    product = size.factor
    for symbol in size.symbols:
        product *= symbols[symbol]
    return product


class _Run:
    def __init__(
        self, kernel: Kernel, piece: Piece, inputs: Any, outputs: Any, symbols: Any, wide: bool
    ) -> None:
        self.kernel, self.piece, self.inputs, self.outputs = kernel, piece, inputs, outputs
        self.symbols, self.float = symbols, np.float64 if wide else np.float32
        self.ranges = []
        for index, axis in enumerate(kernel.axes):
            start, stop = 0, number(axis.size, symbols)
            if index == kernel.cut:
                start = number(piece.start, symbols)
                stop = stop if piece.stop is None else number(piece.stop, symbols)
            shape = [1] * len(kernel.axes)
            shape[index] = -1
            self.ranges.append(np.arange(start, stop, dtype=np.int64).reshape(shape))

    def run(self) -> None:
        values: list[np.ndarray] = []
        for step in self.piece.body:
            values.append(self.value(step, [values[arg] for arg in step.args]))
        for store in self.piece.stores:
            at = self.index(store.access)
            value = values[store.instruction]
            port = self.kernel.outputs[store.access.port]
            axes = [
                0 if index in self.kernel.reduced and not store.access.strides[index].factor else slice(None)
                for index in range(len(self.kernel.axes))
            ]
            full = np.broadcast_shapes(
                at.shape,
                value.shape,
                *(r.shape for i, r in enumerate(self.ranges) if not isinstance(axes[i], int)),
            )
            flat = self.outputs[store.access.port].reshape(-1)
            flat[np.broadcast_to(at, full).reshape(-1)] = (
                np.broadcast_to(value, full).reshape(-1).astype(TYPES[port.element])
            )

    def index(self, access: Any) -> np.ndarray:
        at = np.full([1] * len(self.kernel.axes), number(access.offset, self.symbols), np.int64)
        for stride, counter in zip(access.strides, self.ranges, strict=True):
            if stride.factor:
                at = at + number(stride, self.symbols) * counter
        return at

    def value(self, step: Instruction, args: list[np.ndarray]) -> np.ndarray:
        op = step.op
        kind = self.float if step.element is Element.F32 else TYPES[step.element]
        one = [1] * len(self.kernel.axes)
        if op == "load":
            assert step.access is not None
            at = self.index(step.access)
            data = self.inputs[step.access.port].reshape(-1)
            return data[at].astype(kind) if at.size else np.zeros(at.shape, kind)
        if op == "constant":
            return np.full(one, step.value).astype(np.float32 if step.element.is_float else kind).astype(kind)
        if op == "extent":
            assert step.size is not None
            return np.full(one, number(step.size, self.symbols)).astype(kind)
        if op.startswith("reduce_"):
            return self.reduced(op.removeprefix("reduce_"), args[0], kind)
        if op == "cast":
            if kind in (np.uint8, np.int8) and args[0].dtype.kind == "f":
                return args[0].astype(np.int32).astype(kind)
            return args[0].astype(kind)
        if op == "round":
            assert step.into is not None
            return args[0].astype(np.float32).astype(TYPES[step.into]).astype(kind)
        if op == "select":
            return np.where(args[0], args[1], args[2])
        if op == "erf":
            return erf(args[0].astype(np.float64)).astype(kind)
        if op in ("div", "mod") and args[0].dtype.kind != "f":
            quotient = np.trunc(args[0].astype(np.longdouble) / args[1].astype(np.longdouble)).astype(
                args[0].dtype
            )
            return quotient if op == "div" else args[0] - args[1] * quotient
        if op == "div":
            return args[0] / args[1]
        if op in ("shl", "shr"):
            bits = args[0].dtype.itemsize * 8
            inside = (args[1] >= 0) & (args[1] < bits)
            count = np.where(inside, args[1], 0).astype(args[0].dtype)
            moved = np.left_shift(args[0], count) if op == "shl" else np.right_shift(args[0], count)
            return np.where(inside, moved, 0).astype(kind)
        if op in PRECISE and args[0].dtype.kind == "f":
            return PRECISE[op](*(arg.astype(np.float64) for arg in args)).astype(kind)
        if args[0].dtype == np.bool_ and op in ("lt", "le"):
            return ~args[0] & args[1] if op == "lt" else ~args[0] | args[1]
        if op in ("floor", "ceil", "round_even", "trunc") and args[0].dtype.kind != "f":
            return args[0]
        return _EXACT[op](*args)

    def reduced(self, op: str, value: np.ndarray, kind: Any) -> np.ndarray:
        axes = self.kernel.reduced
        full = list(value.shape)
        for axis in axes:
            full[axis] = self.ranges[axis].size
        value = np.broadcast_to(value, full)
        if op in ("sum", "prod"):
            if value.dtype == np.bool_:
                return (np.any if op == "sum" else np.all)(value, axis=axes, keepdims=True)
            wide = np.float64 if value.dtype.kind == "f" else value.dtype
            return (np.sum if op == "sum" else np.prod)(value, axis=axes, keepdims=True, dtype=wide).astype(
                kind
            )
        if value.dtype == np.bool_:
            return (np.any if op == "max" else np.all)(value, axis=axes, keepdims=True)
        ends = (-np.inf, np.inf) if value.dtype.kind == "f" else (np.iinfo(kind).min, np.iinfo(kind).max)
        if op == "max":
            return np.max(value, axis=axes, keepdims=True, initial=ends[0]).astype(kind)
        return np.min(value, axis=axes, keepdims=True, initial=ends[1]).astype(kind)


def erf(x: np.ndarray) -> np.ndarray:
    """The error function in double precision."""
    from math import erf as erf_of

    return np.vectorize(erf_of, otypes=[np.float64])(x)
