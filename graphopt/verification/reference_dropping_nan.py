"""Reference operators that drop every NaN that some kernel drops depending on its position."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun
from onnx.reference.ops import op_global_max_pool, op_max_pool


def _extreme(choose: Any, x: Any, axes: Any, keepdims: int, noop_with_empty_axes: int) -> tuple[Any]:
    empty = axes is None or np.size(axes) == 0
    if empty and noop_with_empty_axes:
        return (x,)
    axis = None if empty else tuple(int(axis) for axis in np.ravel(axes))
    return (np.asarray(choose.reduce(x, axis=axis, keepdims=keepdims != 0)),)


class ReduceMax(OpRun):
    """ReduceMax, ignoring NaN."""

    def _run(self, x: Any, axes: Any = None, keepdims: int = 1, noop_with_empty_axes: int = 0) -> tuple[Any]:
        return _extreme(np.fmax, x, axes, keepdims, noop_with_empty_axes)


class ReduceMin(OpRun):
    """ReduceMin, ignoring NaN."""

    def _run(self, x: Any, axes: Any = None, keepdims: int = 1, noop_with_empty_axes: int = 0) -> tuple[Any]:
        return _extreme(np.fmin, x, axes, keepdims, noop_with_empty_axes)


class LogSoftmax(OpRun):
    """LogSoftmax, ignoring NaN."""

    def _run(self, x: Any, axis: int = -1) -> tuple[Any]:
        shifted = x - np.fmax.reduce(x, axis=axis, keepdims=True)
        return ((shifted - np.log(np.nansum(np.exp(shifted), axis=axis, keepdims=True))).astype(x.dtype),)


class MaxPool(op_max_pool.MaxPool):
    """MaxPool, ignoring NaN."""

    def _run(self, x: Any, **options: Any) -> Any:  # type: ignore[override]
        return super()._run(_numbers(x), **options)  # type: ignore[no-untyped-call]


class GlobalMaxPool(op_global_max_pool.GlobalMaxPool):
    """GlobalMaxPool, ignoring NaN."""

    def _run(self, x: Any) -> Any:
        return super()._run(_numbers(x))  # type: ignore[no-untyped-call]


def _numbers(x: Any) -> Any:
    return np.where(np.isnan(x), -np.inf, x).astype(x.dtype)


OPERATORS = [ReduceMax, ReduceMin, LogSoftmax, MaxPool, GlobalMaxPool]
