"""Conv and ConvTranspose: factors and summands of operand and result are folded into weight and bias."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphopt import ir
from graphopt.rewrite import Builder, Exact, Match, Outcome, Reassociates, rule
from graphopt.rules.building_blocks import ort_fusions as fusions
from graphopt.rules.building_blocks.affine_layers import (
    LAYERS,
    by_channel,
    channels_of,
    folded_name,
    folded_weight,
    with_affine,
)
from graphopt.rules.building_blocks.axes import axes_of
from graphopt.rules.building_blocks.broadcasting import along_axis, require_right_alignment
from graphopt.rules.building_blocks.computed_constants import affordable, exact, factor_of, rounded
from graphopt.rules.building_blocks.operands import int_of

_CONVS = ("Conv", "ConvTranspose")


@rule(
    lambda op, x, c: op.one_of("Add", "Sub")(op.one_of(*_CONVS)(x.rest(), tag="conv"), c.constant()),
    numerics=Reassociates,
    exclusive=True,
    tags=(
        "onnxslim:conv-add",
        "onnxoptimizer:fuse_add_bias_into_conv",
        "onnxruntime:ConvAddFusion",
        "onnxslim:convtranspose-add",
    ),
)
def add_into_conv(op: Builder, m: Match, c: ir.Value) -> Outcome:
    """Conv(x, w, b) + c → Conv(x, w, b + c), if c has one number per channel."""
    added = m.traced(c)
    shift = by_channel(m, m.node("conv"), None if added is None else exact(added))
    if shift is None:
        return m.no("the constant differs within a channel, or the channels are unknown", c)
    return with_affine(op, m, m.node("conv"), None, -shift if m.root.op_type == "Sub" else shift, (c,))


@rule(
    lambda op, x, c: op.one_of("Mul", "Div")(op.one_of(*_CONVS)(x.rest(), tag="conv"), c.constant()),
    lambda op, x: op.Neg(op.one_of(*_CONVS)(x.rest(), tag="conv")),
    numerics=Reassociates,
    exclusive=True,
    tags=(
        "onnxslim:conv-mul",
        "onnxscript:conv-affine-fusion",
        "onnxruntime:ConvMulFusion",
        "onnxslim:convtranspose-mul",
    ),
)
def mul_into_conv(op: Builder, m: Match, c: ir.Value | None) -> Outcome:
    """Conv(x, w, b) * c → Conv(x, w * c, b * c), if c has one number per channel."""
    scale = by_channel(m, m.node("conv"), factor_of(m, m.root, c))
    if scale is None:
        return m.no("the constant differs within a channel, is divided, or is 0", c)
    return with_affine(op, m, m.node("conv"), scale, None)


@rule(
    lambda op, x, a, c: op.one_of("Add", "Sub", "Mul", "Div")(
        op.Squeeze(op.one_of(*_CONVS)(x.rest(), tag="conv"), a.rest(), tag="squeeze"), c.constant()
    ),
    numerics=Reassociates,
    exclusive=True,
)
def affine_after_squeeze_into_conv(op: Builder, m: Match, a: Any, c: ir.Value) -> Outcome:
    """c * Squeeze(Conv(x, w, b)) + d → Squeeze(Conv(x, w', b')), if c and d have one number per channel."""
    require_right_alignment(m)
    conv, squeeze, number = m.node("conv"), m.node("squeeze"), m.traced(c)
    axes, rank, channels = axes_of(m, squeeze), m.rank(conv.outputs[0]), channels_of(m, conv)
    if axes is None or rank is None or channels is None or number is None or 1 in axes:
        return m.no("the axes are unknown, or the channels are squeezed away", squeeze.outputs[0])
    axis = 1 - sum(1 for squeezed in axes if squeezed < 1)
    numbers = along_axis(number, axis, rank - len(axes), channels)
    if numbers is None:
        return m.no("the constant differs within a channel", c)
    if m.root.op_type in ("Add", "Sub"):
        shift = exact(numbers)
        result = with_affine(op, m, conv, None, -shift if m.root.op_type == "Sub" else shift, (c,))
    else:
        factor = factor_of(m, m.root, c)
        if factor is None:
            return m.no("the constant is divided, or is 0", c)
        result = with_affine(op, m, conv, factor.reshape(-1).broadcast_to(channels), None)
    return op.like(squeeze, [result, *a])


@rule(
    lambda op, x, c, w, rest: op.Conv(
        op.one_of("Mul", "Div")(x, c.constant(), tag="scale"), w.constant(), rest.rest()
    ),
    numerics=Reassociates,
    exclusive=True,
    tags=("onnxscript:affine-conv-fusion",),
)
def scale_before_conv(op: Builder, m: Match, x: ir.Value, c: ir.Value, w: ir.Value, rest: Any) -> Outcome:
    """Conv(x * c, w, b) → Conv(x, w * c, b), if c has one number per channel; padding stays 0."""
    if fusions.is_gelu_factor(x):
        return m.no(fusions.GELU, x)
    weight, factor, group = m.traced(w), factor_of(m, m.node("scale"), c), int_of(m, m.root, "group", 1)
    if weight is None or factor is None or not group or weight.shape[0] % group:
        return m.no("not a factor, or the channels can't be grouped", c)
    scale = along_axis(factor, 1, weight.ndim, weight.shape[1] * group)
    if scale is None or m.rank(x) != weight.ndim:
        return m.no("the constant differs within a channel, or widens the tensor", c)
    # (M, C / group, …): the outputs of group g read the inputs of group g
    grouped = exact(weight).reshape(group, -1, *weight.shape[1:])
    product = grouped * scale.reshape(group, 1, weight.shape[1], *(1,) * (weight.ndim - 2))
    folded = rounded(product, weight.dtype, tuple(range(2, product.ndim)))
    new_weight = folded_weight(op, m, w, None if folded is None else folded.reshape(*weight.shape))
    return op.like(m.root, [x, new_weight, *rest])


#: Maximum constant before a Conv. A larger one could nearly cancel x; the rewrite would then lose digits.
_LARGEST_SHIFT = 256


@rule(
    lambda op, x, c, w, b: op.Conv(
        op.one_of("Add", "Sub")(x, c.constant(), tag="shift"), w.constant(), b.optional()
    ),
    numerics=Reassociates,
    exclusive=True,
    tags=("onnxscript:affine-conv-fusion",),
)
def shift_before_conv(
    op: Builder, m: Match, x: ir.Value, c: ir.Value, w: ir.Value, b: ir.Value | None
) -> Outcome:
    """Conv(x + c, w, b) → Conv(x, w, b'), if c has one number per channel and the Conv has no padding."""
    require_right_alignment(m)
    conv, shift_node = m.root, m.node("shift")
    weight, number, group = m.traced(w), m.traced(c), int_of(m, conv, "group", 1)
    bias = m.traced(b)
    if weight is None or number is None or not group or weight.shape[0] % group or (b and bias is None):
        return m.no("the bias is not constant, or the channels can't be grouped", b)
    if shift_node.inputs[0] is c and shift_node.op_type == "Sub":
        return m.no("x is subtracted", x)
    pads, auto_pad = m.attribute(conv, "pads"), m.attribute(conv, "auto_pad")
    if any(pads or ()) or auto_pad not in ("NOTSET", "VALID"):
        return m.no("the padding would have to be shifted", x)
    numbers = along_axis(exact(number), 1, weight.ndim, weight.shape[1] * group)
    if numbers is None or m.rank(x) != weight.ndim or weight.dtype not in (np.float32, np.float64):
        return m.no("the constant differs within a channel, or widens the tensor", c)
    shift = numbers.require(~(abs(numbers) > _LARGEST_SHIFT))
    if shift is None:
        return m.no("the constant is large, and might cancel x", c)
    # for each group, (M / group, C / group) times (C / group, 1)
    kernels = exact(weight).reshape(group, -1, weight.shape[1], int(np.prod(weight.shape[2:]))).sum(3)
    total = (kernels @ shift.reshape(group, weight.shape[1], 1)).reshape(-1)
    if shift_node.op_type == "Sub":
        total = -total
    folded = rounded(total if bias is None else total + exact(bias), weight.dtype, (0,))
    if folded is None or not affordable(m, folded.nbytes, b, c):
        return m.no("the new bias is too large", b)
    return op.like(conv, [x, w, op.constant(folded, folded_name(b or conv.outputs[0]))])


@rule(
    lambda op, x, w: op.one_of(*LAYERS)(x, w, 0),
    numerics=Reassociates,
    tags=(
        "onnxscript:remove-optional-bias-from-conv",
        "onnxscript:remove-optional-bias-from-gemm",
        "onnxscript:remove-optional-bias-from-conv-transpose",
    ),
)
def drop_zero_bias(op: Builder, m: Match, x: ir.Value, w: ir.Value) -> Outcome:
    """Conv(x, w, 0) → Conv(x, w), also ConvTranspose and Gemm (zeros may change sign)."""
    if m.root.op_type == "Gemm" and m.version < 11:
        return m.no("Gemm needs a bias at this opset")
    return op.like(m.root, [x, w])


@rule(
    lambda op, x, xs, xz, w, ws, wz, ys, yz: op.QLinearConv(x, xs, xz, w, ws, wz, ys, yz, 0),
    numerics=Exact,
    tags=("onnxscript:remove-optional-bias-from-qlinear-conv",),
)
def drop_zero_bias_of_qlinear_conv(op: Builder, m: Match) -> Outcome:
    """QLinearConv(…, 0) → QLinearConv(…): a bias of zeros."""
    return op.like(m.root, m.root.inputs[:8])
