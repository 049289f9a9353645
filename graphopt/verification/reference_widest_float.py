"""Reference operators for the widest float type; onnx's own operators would narrow it, or lose NaN."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import onnx.helper
from onnx.reference.op_run import OpRun
from onnx.reference.ops import op_max_pool

#: Types of a Cast that loses precision or overflows on purpose.
_NARROW = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)


def widened(value: Any) -> Any:
    """Floats in numpy's widest type; other values are unchanged."""
    is_float = isinstance(value, np.ndarray | np.generic) and value.dtype.kind == "f"
    return value.astype(np.longdouble) if is_float else value


class Constant(OpRun):
    """Constant, of any attribute."""

    def _run(self, **attributes: Any) -> tuple[Any]:
        (value,) = (value for value in attributes.values() if value is not None)
        return (widened(np.asarray(value)),)


def _cast(narrow: Collection[int]) -> type[OpRun]:
    """The operator Cast, which leaves floats unchanged unless the target is in ``narrow``."""

    class Cast(OpRun):
        def _run(self, x: Any, to: int = 1, **options: Any) -> tuple[Any]:
            dtype = onnx.helper.tensor_dtype_to_np_dtype(to)
            if np.dtype(dtype).kind == "f" and x.dtype.kind == "f" and to not in narrow:
                return (x,)
            return (widened(x.astype(dtype)),)

    return Cast


class MaxPool(op_max_pool.MaxPool):
    """MaxPool, which is NaN if the window contains a NaN."""

    def _run(self, x: Any, **options: Any) -> Any:  # type: ignore[override]
        nans = np.isnan(x)
        numbers = np.where(nans, -np.inf, x).astype(x.dtype)
        found, *places = super()._run(numbers, **options)  # type: ignore[no-untyped-call]
        lost, *_ = super()._run(nans.astype(x.dtype), **options)  # type: ignore[no-untyped-call]
        return np.where(lost > 0, np.nan, found).astype(x.dtype), *places


OPERATORS = [Constant, _cast(_NARROW), MaxPool]
#: The same without casts to half precision: onnxruntime drops a Cast to half precision and back.
UNROUNDED = [Constant, _cast(()), MaxPool]
