"""InstanceNorm: normalizations of each channel, or group of channels, over its spatial elements.

Exporters write a GroupNorm as an InstanceNormalization between views. This form is kept: onnxruntime has no
kernel of GroupNormalization on the CPU, and its decomposition is slower.
"""

from __future__ import annotations

import numpy as np

from graphopt import ir
from graphopt.rewrite import Builder, Match, Outcome, fusion
from graphopt.rules.building_blocks import normalization_operators
from graphopt.rules.building_blocks import normalization_patterns as patterns
from graphopt.rules.building_blocks.broadcasting import keeps_shape
from graphopt.rules.building_blocks.computed_constants import exact, rounded
from graphopt.rules.building_blocks.kernel_availability import require_kernel

_NAME = "InstanceNormalization"


@fusion(patterns.layer_norms, pattern="InstanceNorm", anchors=())
def instance_norm(
    op: Builder, m: Match, x: ir.Value, eps: ir.Value | None, scale: ir.Value | None
) -> Outcome:
    """(x - mean) / Sqrt(variance + eps) → InstanceNormalization(x) with scale 1, per channel."""
    shape, dtype, epsilon = normalization_operators.facts_of(m, x, eps)
    if normalization_operators.first_axis(m, len(shape)) != 2 or not normalization_operators.is_spatial(
        m, x, 2, scale
    ):
        return m.no("it does not reduce exactly the axes after the channel", x)
    require_kernel(m, _NAME, x, domain="")
    channels = shape[1]
    assert isinstance(channels, int)  # checked by is_spatial
    ones, zeros = np.ones(channels, dtype.numpy()), np.zeros(channels, dtype.numpy())
    result = op.fused(op.node(_NAME, [x, ones, zeros], {"epsilon": epsilon}))
    return result if scale is None else op.Mul(result, scale)


@fusion(
    lambda op, x, s, b, c: op.one_of("Mul", "Add")(
        op.InstanceNormalization(x, s.constant(), b.constant(), tag="norm"), c.constant()
    ),
    pattern="InstanceNorm",
    anchors=(),
)
def constant_into_instance_norm(
    op: Builder, m: Match, x: ir.Value, s: ir.Value, b: ir.Value, c: ir.Value
) -> Outcome:
    """InstanceNormalization(x, s, b) * c → InstanceNormalization(x, s * c, b * c); likewise for + c."""
    scale, bias, constant, rank = m.traced(s), m.traced(b), m.traced(c), m.rank(x)
    if scale is None or bias is None or constant is None or rank is None:
        return m.no("the rank is unknown", x)
    if not keeps_shape(m, x, c) or constant.size not in (1, scale.size):
        return m.no("it is not one number per channel", c)
    dims = (1,) * (rank - constant.ndim) + constant.shape
    if constant.size > 1 and dims[1] != constant.size:
        return m.no("it is not one number per channel", c)
    each = exact(constant.reshape(-1).broadcast_to(*scale.shape))
    added = m.root.op_type == "Add"
    with np.errstate(all="ignore"):
        factors = rounded(exact(scale) if added else exact(scale) * each, scale.dtype)
        summands = rounded(exact(bias) + each if added else exact(bias) * each, bias.dtype)
    if factors is None or summands is None:
        return m.no("the scale or bias would not be finite, or lose digits", c)
    new_scale = s if added else op.constant(factors, s.name)
    return op.fused(op.like(m.node("norm"), [x, new_scale, op.constant(summands, b.name)]))
