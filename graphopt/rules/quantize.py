"""QuantizeLinear and DequantizeLinear: round trips, and bounds that quantization makes redundant.

onnxruntime runs an operator between DequantizeLinear and QuantizeLinear on integers, so pairs around
operators that compute are not changed.
"""

from __future__ import annotations

import numpy as np

from graphopt import ir
from graphopt.rewrite import Builder, Exact, Match, Outcome, rule
from graphopt.rules.building_blocks import quantizers
from graphopt.rules.building_blocks.operands import operand
from graphopt.rules.building_blocks.quantizers import BYTES, WORDS


@rule(
    lambda op, x, a, b: op.QuantizeLinear(op.DequantizeLinear(x, a.rest(), tag="dequantize"), b.rest()),
    lambda op, x, a, b: op.domain(ir.MICROSOFT).QuantizeLinear(
        op.domain(ir.MICROSOFT).DequantizeLinear(x, a.rest(), tag="dequantize"), b.rest()
    ),
    numerics=Exact,
    tags=("onnxruntime:DoubleQDQPairsRemover",),
)
def drop_round_trip(op: Builder, m: Match, x: ir.Value) -> Outcome:
    """QuantizeLinear(DequantizeLinear(x)) → x, with the same scale and zero point."""
    fault = quantizers.inversion_obstacle(m, m.node("dequantize"), m.root)
    return x if fault is None else m.no(fault, x)


@rule(
    lambda op, x, s, z: op.QuantizeLinear(op.Relu(x), s.constant(), z.optional()),
    lambda op, x, s, z: op.domain(ir.MICROSOFT).QuantizeLinear(op.Relu(x), s.constant(), z.optional()),
    numerics=Exact,
    exclusive=True,
    tags=("onnxruntime:ReluQuantFusion",),
)
def drop_relu_before_quantizing(
    op: Builder, m: Match, x: ir.Value, s: ir.Value, z: ir.Value | None
) -> Outcome:
    """QuantizeLinear(Relu(x)) → QuantizeLinear(x), if the zero point is the least integer."""
    scale, dtype = m.constant(s), m.dtype(m.root.outputs[0])
    point = quantizers.zero_point(m, m.root)
    if scale is None or not np.all(np.isfinite(scale) & (scale > 0)):
        return m.no("a scale is not a positive number", s)
    if dtype not in (*BYTES, *WORDS) or point is None:
        return m.no("not the type of integers, or the zero point is not constant", z)
    if np.any(point != np.iinfo(dtype.numpy()).min):
        return m.no("negative numbers have quantized values", z)
    return op.like(m.root, [x, *m.root.inputs[1:]])


@rule(
    lambda op, x, bounds, q: op.QuantizeLinear(op.Clip(x, bounds.rest(), tag="clip"), q.rest()),
    lambda op, x, bounds, q: op.domain(ir.MICROSOFT).QuantizeLinear(
        op.Clip(x, bounds.rest(), tag="clip"), q.rest()
    ),
    numerics=Exact,
    exclusive=True,
    tags=("onnxruntime:ClipQuantFusion",),
)
def drop_clip_before_quantizing(op: Builder, m: Match, x: ir.Value) -> Outcome:
    """QuantizeLinear(Clip(x, a, b)) → QuantizeLinear(x), if it saturates within a and b."""
    parameters, dtype = quantizers.parameters(m, m.root), m.dtype(m.root.outputs[0])
    if parameters is None or dtype not in (*BYTES, *WORDS) or m.dtype(x) != ir.DataType.FLOAT:
        return m.no("not 8 or 16 bits, or the scale is no positive number in float32", x)
    scale, point = (array.astype(np.float64) for array in parameters)
    for name, index, integer, sign in (
        ("min", 1, np.iinfo(dtype.numpy()).min, -1),
        ("max", 2, np.iinfo(dtype.numpy()).max, 1),
    ):
        bound = _bound(m, m.node("clip"), name, index)
        if bound is None or np.isnan(bound):
            return m.no(f"{name} is unknown", x)
        # up to 1/2 beyond the last integer, x is rounded to the last integer; 0.49 leaves a margin for the
        # error of the division
        if np.any(sign * (bound / scale + point - integer) < -0.49):
            return m.no(f"{name} is quantized to an integer in between", x)
    return op.like(m.root, [x, *m.root.inputs[1:]])


def _bound(m: Match, clip: ir.Node, name: str, index: int) -> float | None:
    """A bound of a Clip, perhaps infinite; ``None`` if it is unknown."""
    if m.version < 11:
        value = m.attribute(clip, name)
        return None if not isinstance(value, float) else value
    bound = operand(clip, index)
    if bound is None:
        return float("-inf" if name == "min" else "inf")
    array = m.constant(bound)
    return None if array is None or array.size != 1 else float(array.reshape(()))
