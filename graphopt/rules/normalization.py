"""LayerNorm and RMSNorm from the means, roots and products that exporters write.

The core comes first, with a scale of 1; a scale, a bias and casts around it join it.
"""

from __future__ import annotations

import math

import numpy as np

from graphopt import ir
from graphopt.context import Refusal
from graphopt.rewrite import Match, Outcome, Reassociates, rule
from graphopt.rewrite.builder import Builder
from graphopt.rules import _forms as forms
from graphopt.rules import _norms as norms

# Cores ----------------------------------------------------------------------------------------


@rule(
    norms.layer_norms,
    numerics=Reassociates,
    exclusive=True,
    fuses=True,
    pattern="LayerNorm",
    anchors=("Sqrt",),
    tags=("onnxruntime:LayerNormFusion",),
)
def layer_norm(op: Builder, m: Match, x: ir.Value, a: object, b: object, eps: ir.Value | None) -> Outcome:
    """(x - mean) / sqrt(mean of squares + eps) is a LayerNormalization of scale 1."""
    return _core(op, m, norms.LAYER, x, eps)


@rule(
    norms.rms_norms,
    numerics=Reassociates,
    exclusive=True,
    fuses=True,
    pattern="RMSNorm",
    anchors=("Sqrt",),
    tags=("onnxscript:rms-normalization", "onnxruntime:SimplifiedLayerNormFusion"),
)
def rms_norm(op: Builder, m: Match, x: ir.Value, b: object, eps: ir.Value | None) -> Outcome:
    """x / sqrt(mean of squares + eps) is an RMSNormalization of scale 1."""
    return _core(op, m, norms.RMS, x, eps)


@rule(
    norms.scaled_rms_norms,
    numerics=Reassociates,
    exclusive=True,
    fuses=True,
    pattern="RMSNorm for onnxruntime to fuse",
    anchors=(),
    tags=("onnxruntime:SimplifiedLayerNormFusion",),
)
def rms_norm_spelling(
    op: Builder, m: Match, x: ir.Value, b: object, eps: ir.Value, scale: ir.Value
) -> Outcome:
    """Where the opset has no RMSNormalization, x / sqrt(mean(x ** 2) + eps) * scale, spelt out like this."""
    rank, dtype = m.rank(x), m.dtype(x)
    if m.version >= norms.RMS.since or m.cx.options.portable:
        return m.no("it becomes an operator, or is to stay as it is", x)
    if dtype != ir.DataType.FLOAT or rank is None or m.rank(scale) != 1:
        return m.no("not of type float, or the rank is unknown, or the scale is no vector", x)
    (mean,) = (node for node in m.nodes if node.op_type == "ReduceMean")
    if (
        norms.reduced(m, mean, rank) != rank - 1
        or ir.scalar_of(eps) is None
        or not forms.keeps_shape_of(m, x)
    ):
        return m.no("it is not taken over the last axis, or constants widen it", x)
    square = op.Pow(x, np.array(2, np.float32))
    root = op.Sqrt(op.Add(op.like(mean, [square, *mean.inputs[1:]]), eps))
    return op.Mul(op.Div(x, root), scale)


@rule(
    norms.distributed_layer_norms,
    numerics=Reassociates,
    exclusive=True,
    fuses=True,
    pattern="LayerNorm",
    anchors=(),
)
def distributed_layer_norm(
    op: Builder, m: Match, x: ir.Value, a: object, b: object, eps: ir.Value, scale: ir.Value, bias: ir.Value
) -> Outcome:
    """x * r + (bias - mean * r), where r is scale / sqrt(mean of squares + eps), is a LayerNormalization."""
    return _core(op, m, norms.LAYER, x, eps, scale, bias)


def _core(
    op: Builder, m: Match, kind: norms.Kind, x: ir.Value, eps: ir.Value | None, *parameters: ir.Value
) -> ir.Value | Refusal:
    """A normalization with ``parameters``, by default a scale of 1."""
    shape, dtype, little = m.shape(x), m.dtype(x), 0.0 if eps is None else ir.scalar_of(eps)
    if shape is None or dtype is None or little is None or not 0 <= little < math.inf:
        return m.no("the rank, the type or epsilon is unknown", x)
    if not forms.keeps_shape_of(m, x):
        return m.no(forms.WIDENED, x)
    axes = {norms.reduced(m, node, len(shape)) for node in m.nodes if node.op_type == "ReduceMean"}
    first = axes.pop() if len(axes) == 1 else None
    if first is None:
        return m.no("it is not taken over the last axes", x)
    if kind is norms.LAYER and norms.is_spatial(m, x, first) and not parameters:
        return m.no("each channel is normalized: InstanceNormalization does that", x)
    size = ir.all_ints(shape[first:])
    if size is None:
        return m.no("the size of the last axes is unknown", x, hint="fix it, if it is an input's: --dim")
    for value in parameters:
        if not forms.same_shape(m, m.shape(value), size):
            return m.no("the scale or bias is not one number for each element", value)
    scale = parameters or (np.ones(size, dtype.numpy()),)
    return norms.write(op, m, kind, [x, *scale], dtype, first - len(shape), float(little))


# Scale, bias and casts ------------------------------------------------------------------------


@rule(
    lambda op, x, one, g: op.Mul(op.one_of(*norms.OPERATORS)(x, one.constant(), tag="norm"), g),
    numerics=Reassociates,
    exclusive=True,
    fuses=True,
    pattern="norm with scale and bias",
    anchors=(),
)
def scale_into_norm(op: Builder, m: Match, x: ir.Value, one: ir.Value, g: ir.Value) -> Outcome:
    """A normalization times one number for each of its elements takes that as its scale."""
    norm, scale = m.node("norm"), m.constant(one)
    if scale is None or not np.all(scale == 1) or len(norm.inputs) > 2:
        return m.no("it is scaled already", one)
    factor = _for_each(op, m, g, one)
    if factor is None:
        return m.no("the factor is not one number for each element", g)
    return op.fused(op.like(norm, [x, factor]))


@rule(
    lambda op, x, g, b: op.Add(op.LayerNormalization(x, g, tag="norm"), b),
    numerics=Reassociates,
    exclusive=True,
    fuses=True,
    pattern="norm with scale and bias",
    anchors=(),
)
def bias_into_norm(op: Builder, m: Match, x: ir.Value, g: ir.Value, b: ir.Value) -> Outcome:
    """A LayerNormalization plus one number for each of its elements takes that as its bias."""
    summand = _for_each(op, m, b, g)
    if summand is None:
        return m.no("the summand is not one number for each element", b)
    return op.fused(op.like(m.node("norm"), [x, g, summand]))


def _for_each(op: Builder, m: Match, value: ir.Value, scale: ir.Value) -> ir.Value | None:
    """``value`` in the shape of ``scale``, from which it differs by leading axes of size 1 at most."""
    wanted = m.shape(scale)
    if forms.same_shape(m, m.shape(value), wanted):
        return value
    array = m.constant(value)
    sizes = None if wanted is None else ir.all_ints(wanted)
    if array is None or sizes is None or array.shape != (1,) * (array.ndim - len(sizes)) + tuple(sizes):
        return None
    norm, shape = m.node("norm").outputs[0], m.shape(m.root.outputs[0])
    if not forms.same_shape(m, m.shape(norm), shape):
        return None
    return op.constant(array.reshape(sizes), value.name)


@rule(
    lambda op, x, s, t: op.Cast(
        op.one_of(*norms.OPERATORS)(op.Cast(x, to=int(ir.DataType.FLOAT)), s.rest(), tag="norm"), to=t
    ),
    numerics=Reassociates,
    exclusive=True,
    fuses=True,
    pattern="norm between casts",
    anchors=(),
    tags=("onnxscript:rms-normalization",),
)
def casts_into_norm(op: Builder, m: Match, x: ir.Value, s: tuple[ir.Value, ...], t: int) -> Outcome:
    """A normalization in float of float16 that is rounded to float16 again computes in float anyway."""
    norm, dtype = m.node("norm"), m.dtype(x)
    if dtype not in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16) or int(dtype) != t:
        return m.no("it does not end in the type in which it begins", x)
    if (refusal := forms.unavailable(m, norm.op_type, x, domain="")) is not None:
        return refusal
    parameters = [_narrowed(op, m, value, dtype) for value in s]
    if None in parameters:
        return m.no("the scale or bias has more digits than the type", s[parameters.index(None)])
    return op.fused(op.like(norm, [x, *parameters]))


def _narrowed(op: Builder, m: Match, value: ir.Value, dtype: ir.DataType) -> ir.Value | None:
    """``value`` of float in ``dtype``, if it loses nothing."""
    node, array = forms.producer_of(value, "Cast"), m.constant(value)
    if array is not None:
        narrow = array.astype(dtype.numpy())
        return op.constant(narrow, value.name) if np.array_equal(narrow.astype(array.dtype), array) else None
    source = None if node is None else node.inputs[0]
    return source if source is not None and m.dtype(source) == dtype else None
