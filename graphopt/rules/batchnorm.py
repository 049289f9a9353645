"""BatchNormalization with fixed statistics: a scale and a shift to be folded into the preceding layer."""

from __future__ import annotations

import numpy as np

from graphopt import ir
from graphopt.ops import traits
from graphopt.rewrite import Builder, Match, Outcome, Reassociates, rule
from graphopt.rewrite.traced_array import TracedArray
from graphopt.rules.building_blocks.affine_layers import LAYERS, channels_of, folded_name, with_affine
from graphopt.rules.building_blocks.broadcasting import along_axis, require_right_alignment
from graphopt.rules.building_blocks.computed_constants import affordable, exact, rounded
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class _Normalization:
    """The effect of a BatchNormalization on each channel: times ``scale``, plus ``shift`` (float64)."""

    scale: TracedArray
    shift: TracedArray


def _normalization(m: Match, node: ir.Node) -> _Normalization | None:
    """The effect of ``node`` if it is in inference mode and its parameters are constant."""
    parameters = [m.traced(value) for value in node.inputs[1:5]]
    epsilon, spatial = m.attribute(node, "epsilon"), m.attribute(node, "spatial")
    if traits.batchnorm_trains(node) or spatial == 0:
        return None
    if not isinstance(epsilon, float) or len(parameters) != 4:
        return None
    arrays = [exact(array) for array in parameters if array is not None and array.ndim == 1]
    if len(arrays) != 4 or len({array.shape for array in arrays}) != 1:
        return None
    gamma, beta, mean, variance = arrays
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = gamma / (variance + epsilon).sqrt()
        shift = beta - mean * scale
        finite = scale.is_finite() & shift.is_finite()
        valid_scale, valid_shift = scale.require(finite), shift.require(finite)
    return _Normalization(valid_scale, valid_shift) if valid_scale and valid_shift else None


_UNKNOWN = "it is in training mode, or its parameters are not constants with finite results"


@rule(
    lambda op, x, p: op.BatchNormalization(op.one_of(*LAYERS)(x.rest(), tag="layer"), p.rest()),
    numerics=Reassociates,
    exclusive=True,
    tags=(
        "onnxslim:conv-bn",
        "onnxslim:convtranspose-bn",
        "onnxoptimizer:fuse_bn_into_conv",
        "onnxscript:fuse-batchnorm-into-conv",
        "onnxscript:fuse-batchnorm-into-gemm",
        "onnxruntime:ConvBNFusion",
        "onnxscript:fuse-batchnorm-into-conv-transpose",
    ),
)
def batchnorm_into_layer(op: Builder, m: Match) -> Outcome:
    """BatchNormalization(layer(x, w, b)) → layer(x, w', b'), for Conv, ConvTranspose and Gemm."""
    layer, norm = m.node("layer"), _normalization(m, m.root)
    if norm is None:
        return m.no(_UNKNOWN)
    if channels_of(m, layer) != norm.scale.size:
        return m.no("the number of channels is unknown", layer.inputs[1])
    return with_affine(op, m, layer, norm.scale, norm.shift, _parameters(m.root))


@rule(
    lambda op, x, w, p: op.BatchNormalization(op.MatMul(x, w.constant()), p.rest()),
    numerics=Reassociates,
    exclusive=True,
    tags=("onnxruntime:MatmulBNFusion",),
)
def batchnorm_into_matmul(op: Builder, m: Match, x: ir.Value, w: ir.Value) -> Outcome:
    """BatchNormalization(x @ w) → Gemm(x, w', b'), for matrices."""
    norm, weight = _normalization(m, m.root), m.traced(w)
    if norm is None or weight is None:
        return m.no(_UNKNOWN)
    if m.version < 7 or m.rank(x) != 2 or weight.ndim != 2 or weight.shape[1] != norm.scale.size:
        return m.no("not a product of two matrices", x)
    scaled = rounded(exact(weight) * norm.scale, weight.dtype, (0,))
    bias = rounded(norm.shift, weight.dtype, (0,))
    if scaled is None or bias is None:
        return m.no("the scaled weight loses digits", w)
    if not affordable(m, scaled.nbytes, w) or not affordable(m, bias.nbytes, *_parameters(m.root)):
        return m.no("the weight has other readers, and a copy is large", w, shared=True)
    return op.Gemm(x, op.constant(scaled, folded_name(w)), bias)


@rule(
    lambda op, x, p, c: op.one_of("Add", "Sub", "Mul", "Div")(
        op.BatchNormalization(x, p.rest(), tag="norm"), c.constant()
    ),
    numerics=Reassociates,
    exclusive=True,
)
def affine_into_batchnorm(op: Builder, m: Match, x: ir.Value, c: ir.Value) -> Outcome:
    """c * BatchNormalization(x) + d → BatchNormalization(x) with another scale and bias."""
    require_right_alignment(m)
    node, number, rank = m.node("norm"), m.traced(c), m.rank(x)
    norm = _normalization(m, node)
    if norm is None or number is None or rank is None:
        return m.no(_UNKNOWN, x)
    factor = along_axis(number, 1, rank, norm.scale.size)
    if factor is None or rank < 2:
        return m.no("the constant differs within a channel", c)
    gamma, beta = (exact(array) for value in node.inputs[1:3] if (array := m.traced(value)) is not None)
    change = exact(factor)
    match m.root.op_type:
        case "Add":
            beta = beta + change
        case "Sub":
            beta = beta - change
        case "Mul":
            gamma, beta = gamma * change, beta * change
        case "Div":
            divisor = change.require(abs(change) > 0)
            if divisor is None:
                return m.no("a division by 0", c)
            gamma, beta = gamma / divisor, beta / divisor
    return _with_scale_and_bias(op, m, node, gamma, beta)


@rule(
    lambda op, x, p, q: op.BatchNormalization(op.BatchNormalization(x, p.rest(), tag="first"), q.rest()),
    numerics=Reassociates,
    exclusive=True,
)
def join_batchnorms(op: Builder, m: Match, x: ir.Value) -> Outcome:
    """BatchNormalization(BatchNormalization(x)) → BatchNormalization(x)."""
    node = m.node("first")
    first, second = _normalization(m, node), _normalization(m, m.root)
    if first is None or second is None or first.scale.size != second.scale.size:
        return m.no(_UNKNOWN, x)
    gamma, beta = (exact(array) for value in node.inputs[1:3] if (array := m.traced(value)) is not None)
    return _with_scale_and_bias(op, m, node, gamma * second.scale, beta * second.scale + second.shift)


def _with_scale_and_bias(
    op: Builder, m: Match, node: ir.Node, gamma: TracedArray, beta: TracedArray
) -> Outcome:
    """A copy of BatchNormalization ``node`` with other parameters."""
    scale, bias = node.inputs[1:3]
    assert scale is not None and bias is not None
    constants = []
    for value, array in ((scale, gamma), (bias, beta)):
        dtype = m.dtype(value)
        folded = rounded(array, dtype.numpy(), (0,)) if dtype is not None else None
        if folded is None:
            return m.no("the new parameters are too large", value)
        if not affordable(m, folded.nbytes, value):
            return m.no("the parameters have other readers, and copies are large", value, shared=True)
        constants.append(op.constant(folded, folded_name(value)))
    return op.like(node, [node.inputs[0], *constants, *node.inputs[3:5]])


def _parameters(node: ir.Node) -> tuple[ir.Value, ...]:
    return tuple(value for value in node.inputs[1:5] if value is not None)
