"""LayerNorm and RMSNorm from the means, roots and products that exporters write.

First the core becomes a normalization with scale 1; then a scale, a bias and casts are folded into it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphopt import ir
from graphopt.context import Dim
from graphopt.rewrite import Builder, Match, Outcome, fusion
from graphopt.rules.building_blocks import normalization_operators
from graphopt.rules.building_blocks import normalization_patterns as patterns
from graphopt.rules.building_blocks.kernel_availability import require_kernel
from graphopt.rules.building_blocks.operands import producer_of
from graphopt.rules.building_blocks.shape_equality import keeps_shape_of, same_shape

# Cores ----------------------------------------------------------------------------------------


@fusion(patterns.layer_norms, pattern="LayerNorm", anchors=("Sqrt",), tags=("onnxruntime:LayerNormFusion",))
def layer_norm(op: Builder, m: Match, x: ir.Value, eps: ir.Value | None, scale: ir.Value | None) -> Outcome:
    """(x - mean) / Sqrt(variance + eps) → LayerNormalization(x) with scale 1."""
    return _core(op, m, normalization_operators.LAYER, x, eps, scale)


@fusion(
    patterns.rms_norms,
    pattern="RMSNorm",
    anchors=("Sqrt",),
    tags=("onnxscript:rms-normalization", "onnxruntime:SimplifiedLayerNormFusion"),
)
def rms_norm(op: Builder, m: Match, x: ir.Value, eps: ir.Value | None, scale: ir.Value | None) -> Outcome:
    """x / Sqrt(mean(x^2) + eps) → RMSNormalization(x) with scale 1.

    Before opset 23, the operator is SimplifiedLayerNormalization, unless ``--portable`` is set.
    """
    if m.version < normalization_operators.RMS.since and _is_deviation(x):
        return m.no("it normalizes deviations from a mean: LayerNormalization applies", x)
    return _core(op, m, normalization_operators.RMS, x, eps, scale)


def _is_deviation(x: ir.Value) -> bool:
    """Whether ``x`` is the deviation from its mean: the start of a LayerNorm, which onnxruntime fuses."""
    node = producer_of(x, "Sub")
    mean = None if node is None else producer_of(node.inputs[1], *normalization_operators.MEANS)
    return node is not None and mean is not None and mean.inputs[0] is node.inputs[0]


def _core(
    op: Builder,
    m: Match,
    kind: normalization_operators.Kind,
    x: ir.Value,
    eps: ir.Value | None,
    scale: ir.Value | None,
) -> Outcome:
    """A normalization with scale 1, times ``scale`` if there is one."""
    shape, dtype, epsilon = normalization_operators.facts_of(m, x, eps)
    first = normalization_operators.first_axis(m, len(shape))
    if first is None:
        return m.no("it is not taken over the last axes", x)
    if kind is normalization_operators.LAYER and normalization_operators.is_spatial(m, x, first, scale):
        return m.no("it normalizes each channel: InstanceNormalization applies", x)
    result = normalization_operators.write_unscaled(op, m, kind, x, shape, first, dtype, epsilon)
    return result if scale is None else op.Mul(result, scale)


@fusion(
    patterns.layer_norms_with_bias,
    pattern="LayerNorm for onnxruntime to fuse",
    anchors=(),
    tags=("onnxruntime:LayerNormFusion",),
)
def layer_norm_spelling(
    op: Builder, m: Match, x: ir.Value, eps: ir.Value, scale: ir.Value, bias: ir.Value
) -> Outcome:
    """LayerNorm before opset 17, in other forms → (x - mean) / Sqrt(variance + eps) * scale + bias.

    onnxruntime fuses this form. Opset 17 introduced LayerNormalization.
    """
    shape, epsilon = m.shape(x), ir.scalar_of(eps)
    if m.version >= normalization_operators.LAYER.since or m.cx.options.portable:
        return m.no("the opset has an operator for it, or --portable is set", x)
    if m.dtype(x) != ir.DataType.FLOAT or shape is None or epsilon is None:
        return m.no("not of type float, or the rank or epsilon is unknown", x)
    first = normalization_operators.first_axis(m, len(shape))
    if first is None or not keeps_shape_of(m, x):
        return m.no("it is not taken over the last axes, or constants broadcast it", x)
    parameters = [_for_each(op, m, value, shape[first:], x) for value in (scale, bias)]
    factor, summand = parameters
    if factor is None or summand is None:
        return m.no("the scale or bias is not one number per element", x)
    if parameters == [scale, bias] and normalization_operators.is_canonical(m):
        return m.no("onnxruntime already fuses this form", x)
    return op.Add(
        op.Mul(normalization_operators.canonical_form(op, m, x, first, len(shape), float(epsilon)), factor),
        summand,
    )


# Scale, bias and casts ------------------------------------------------------------------------


@fusion(
    lambda op, x, one, g: op.Mul(
        op.one_of(*normalization_operators.OPERATORS)(x, one.constant(), tag="norm"), g
    ),
    pattern="norm with scale and bias",
    anchors=(),
)
def scale_into_norm(op: Builder, m: Match, x: ir.Value, one: ir.Value, g: ir.Value) -> Outcome:
    """LayerNormalization(x) * g → LayerNormalization(x, g); likewise RMSNormalization."""
    norm, scale = m.node("norm"), m.constant(one)
    if scale is None or not np.all(scale == 1) or len(norm.inputs) > 2:
        return m.no("it already has a scale", one)
    factor = _for_each(op, m, g, m.shape(one), m.node("norm").outputs[0])
    if factor is None:
        return m.no("the factor is not one number per element", g)
    return op.fused(op.like(norm, [x, factor]))


@fusion(
    lambda op, x, g, b: op.Add(op.LayerNormalization(x, g, tag="norm"), b),
    pattern="norm with scale and bias",
    anchors=(),
)
def bias_into_norm(op: Builder, m: Match, x: ir.Value, g: ir.Value, b: ir.Value) -> Outcome:
    """LayerNormalization(x, g) + b → LayerNormalization(x, g, b)."""
    summand = _for_each(op, m, b, m.shape(g), m.node("norm").outputs[0])
    if summand is None:
        return m.no("the summand is not one number per element", b)
    return op.fused(op.like(m.node("norm"), [x, g, summand]))


def _for_each(
    op: Builder, m: Match, value: ir.Value, target: Sequence[Dim] | None, kept: ir.Value
) -> ir.Value | None:
    """``value`` in the shape ``target``, if the shapes differ at most by leading axes of size 1.

    ``None`` if they differ in another way, or if these axes may give the result a higher rank than ``kept``
    has.
    """
    given = m.shape(value)
    if target is None or given is None:
        return None
    if same_shape(m, given, target):
        return value
    ahead = len(given) - len(target)
    if ahead < 1 or any(dim != 1 for dim in given[:ahead]) or not same_shape(m, given[ahead:], target):
        return None
    if not keeps_shape_of(m, kept):
        return None
    array, view = m.constant(value), producer_of(value, "Reshape", "Unsqueeze")
    if array is not None:
        return op.constant(array.reshape(array.shape[ahead:]), value.name)
    source = None if view is None else view.inputs[0]
    return source if source is not None and same_shape(m, m.shape(source), target) else None


@fusion(
    lambda op, x, s, t: op.Cast(
        op.one_of(*normalization_operators.OPERATORS)(
            op.Cast(x, to=int(ir.DataType.FLOAT)), s.rest(), tag="norm"
        ),
        to=t,
    ),
    pattern="norm between casts",
    anchors=(),
    tags=("onnxscript:rms-normalization",),
)
def casts_into_norm(op: Builder, m: Match, x: ir.Value, s: tuple[ir.Value, ...], t: int) -> Outcome:
    """Cast(norm(Cast(x, to=float)), to=float16) → norm(x), which computes in float anyway."""
    norm, dtype = m.node("norm"), m.dtype(x)
    if dtype not in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16) or int(dtype) != t:
        return m.no("the types before and after differ", x)
    require_kernel(m, norm.op_type, x, domain="")
    parameters = [_exactly_converted(op, m, value, dtype) for value in s]
    if None in parameters:
        return m.no("the scale or bias has more digits than the type", s[parameters.index(None)])
    return op.fused(op.like(norm, [x, *parameters]))


def _exactly_converted(op: Builder, m: Match, value: ir.Value, dtype: ir.DataType) -> ir.Value | None:
    """``value``, of type float, converted to ``dtype`` if that is exact."""
    node, array = producer_of(value, "Cast"), m.constant(value)
    if array is not None:
        narrow = array.astype(dtype.numpy())
        return op.constant(narrow, value.name) if np.array_equal(narrow.astype(array.dtype), array) else None
    source = None if node is None else node.inputs[0]
    return source if source is not None and m.dtype(source) == dtype else None
