"""Operators of onnx's reference evaluator that would narrow floats again, for a wider evaluation."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.helper
from onnx.reference.op_run import OpRun

from graphopt.runtime.oracle.reference import widened

#: A Cast to these loses what the model means to lose: the result is rounded, and overflows.
_NARROW = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)


class Constant(OpRun):
    """Constant, whatever its attribute."""

    def _run(self, **attributes: Any) -> tuple[Any]:
        (value,) = (value for value in attributes.values() if value is not None)
        return (widened(np.asarray(value)),)


class Cast(OpRun):
    """Cast, which to float32 and double changes nothing of a float."""

    def _run(self, x: Any, to: int = 1, **options: Any) -> tuple[Any]:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(to)
        if np.dtype(dtype).kind == "f" and x.dtype.kind == "f" and to not in _NARROW:
            return (x,)
        return (widened(x.astype(dtype)),)


OPERATORS = [Constant, Cast]
