"""Decompositions of operators without a kernel on the target device.

A CUDA session runs such operators on the CPU, and copies operands and results. If the target is the CPU, the
rules do not apply.
"""

from __future__ import annotations

import numpy as np

from graphopt import ir
from graphopt.rewrite import Builder, Exact, Match, Outcome, rule

_ML = "ai.onnx.ml"


@rule(lambda op, x: op.domain(_ML).Scaler(x), numerics=Exact)
def write_scaler_as_arithmetic(op: Builder, m: Match, x: ir.Value) -> Outcome:
    """Scaler(x) → Mul(Sub(x, offset), scale), if the device has no kernel of Scaler."""
    if m.cx.target.kernels("Scaler", _ML):
        return m.no("the target has a kernel of Scaler", x)
    dtype, shape = m.dtype(x), m.shape(x)
    if dtype != ir.DataType.FLOAT:
        return m.no("the type changes", x)
    operands = [np.array(m.attribute(m.root, name), np.float32) for name in ("offset", "scale")]
    if shape is None or any(array.size not in (1, shape[-1]) for array in operands):
        return m.no("the number of features is unknown", x)
    offset, scale = (
        op.constant(array if array.size > 1 else array.reshape(()), name)
        for array, name in zip(operands, ("offset", "scale"), strict=True)
    )
    return op.Mul(op.Sub(x, offset), scale)


@rule(
    lambda op, x, scale, zero: op.DequantizeLinear(x.constant(), scale.constant(), zero.optional()),
    numerics=Exact,
)
def dequantize_constant(
    op: Builder, m: Match, x: ir.Value, scale: ir.Value, zero: ir.Value | None
) -> Outcome:
    """DequantizeLinear(x, scale) → x * scale for a constant x of int32, if the device has no kernel for it.

    The bias of a convolution between quantizers is of this type. onnxruntime quantizes a constant float bias
    again (``WeightBiasQuantization``), so that default sessions on the CPU still compute with integers.
    """
    dtype, version = m.dtype(x), m.cx.version(m.root)
    if dtype != ir.DataType.INT32 or m.cx.target.has_kernel(m.root.op_type, "", version, dtype):
        return m.no("the target has a kernel of DequantizeLinear for its type", x)
    number, factor = m.constant(x), m.constant(scale)
    point = None if zero is None else m.constant(zero)
    if number is None or factor is None or (zero is not None and (point is None or np.any(point))):
        return m.no("the zero point is not 0", zero)
    if factor.dtype != np.float32 or factor.size != 1:
        if number.ndim != 1 or factor.shape != number.shape or factor.dtype != np.float32:
            return m.no("the scales are not a float32 vector for a vector", scale)
    elif factor.ndim:
        factor = factor.reshape(())
    return op.constant(number.astype(np.float32) * factor, m.root.outputs[0].name)
