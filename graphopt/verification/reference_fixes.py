"""Replacements for operators in which onnx's reference evaluator deviates from the specification."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun
from onnx.reference.ops import op_batch_normalization


class BatchNormalization(op_batch_normalization.BatchNormalization_14):
    """BatchNormalization, which trains only with ``training_mode``.

    Before opset 14, which introduced the attribute, onnx's evaluator mixes batch statistics into the given
    ones.
    """

    def _run(
        self,
        x: Any,
        scale: Any,
        bias: Any,
        mean: Any,
        var: Any,
        epsilon: float = 1e-5,
        momentum: float = 0.9,
        training_mode: int | None = None,
        **older: Any,
    ) -> Any:
        return super()._run(x, scale, bias, mean, var, epsilon, momentum, training_mode or 0)  # type: ignore[no-untyped-call]


class GlobalAveragePool(OpRun):
    """GlobalAveragePool, also of an empty batch, for which onnx's evaluator divides by zero."""

    def _run(self, x: Any) -> Any:
        return (np.mean(x, axis=tuple(range(2, x.ndim)), keepdims=True, dtype=x.dtype),)


OPERATORS = [BatchNormalization, GlobalAveragePool]
