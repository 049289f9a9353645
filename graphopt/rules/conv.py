"""Conv and ConvTranspose: what is added to their result or multiplies it becomes part of them."""

from __future__ import annotations

from typing import Any

from graphopt import ir
from graphopt.rewrite import Exact, Match, Outcome, Reassociates, rule
from graphopt.rewrite.builder import Builder
from graphopt.rules._constants import affordable, along_axis, exact, factor_of, rounded
from graphopt.rules._forms import int_of
from graphopt.rules._linear import LAYERS, by_channel, folded_name, with_affine

_CONVS = ("Conv", "ConvTranspose")


@rule(
    lambda op, x, c: op.one_of("Add", "Sub")(op.one_of(*_CONVS)(x.rest(), tag="conv"), c.constant()),
    numerics=Reassociates,
    exclusive=True,
    tags=("onnxslim:conv-add", "onnxoptimizer:fuse-add-bias-into-conv", "onnxruntime:ConvAddFusion"),
)
def add_into_conv(op: Builder, m: Match, x: Any, c: ir.Value) -> Outcome:
    """conv(x) + c, with one number for each channel, is a conv with another bias."""
    added = m.constant(c)
    shift = by_channel(m, m.node("conv"), None if added is None else exact(added))
    if shift is None:
        return m.no("the constant differs within a channel, or the channels are unknown", c)
    return with_affine(op, m, m.node("conv"), None, -shift if m.root.op_type == "Sub" else shift, (c,))


@rule(
    lambda op, x, c: op.one_of("Mul", "Div")(op.one_of(*_CONVS)(x.rest(), tag="conv"), c.constant()),
    numerics=Reassociates,
    exclusive=True,
    tags=("onnxslim:conv-mul", "onnxscript:conv-affine", "onnxruntime:ConvMulFusion"),
)
def mul_into_conv(op: Builder, m: Match, x: Any, c: ir.Value) -> Outcome:
    """conv(x) * c, with one number for each channel, is a conv with another weight and bias."""
    scale = by_channel(m, m.node("conv"), factor_of(m, m.root, c))
    if scale is None:
        return m.no("the constant differs within a channel, is divided, or is 0", c)
    return with_affine(op, m, m.node("conv"), scale, None)


@rule(
    lambda op, x, c, w, rest: op.Conv(
        op.one_of("Mul", "Div")(x, c.constant(), tag="scale"), w.constant(), rest.rest()
    ),
    numerics=Reassociates,
    exclusive=True,
    tags=("onnxscript:affine-conv",),
)
def scale_before_conv(op: Builder, m: Match, x: ir.Value, c: ir.Value, w: ir.Value, rest: Any) -> Outcome:
    """conv(x * c), with one number for each channel, is a conv with another weight: padding stays 0."""
    weight, factor, group = m.constant(w), factor_of(m, m.node("scale"), c), int_of(m, m.root, "group", 1)
    if weight is None or factor is None or not group or weight.shape[0] % group:
        return m.no("not a factor, or the channels can't be grouped", c)
    scale = along_axis(factor, 1, weight.ndim, weight.shape[1] * group)
    if scale is None or m.rank(x) != weight.ndim:
        return m.no("the constant differs within a channel, or widens the tensor", c)
    # (M, C / group, …): the outputs of group g read the inputs of group g
    grouped = exact(weight).reshape(group, -1, *weight.shape[1:])
    product = grouped * scale.reshape(group, 1, weight.shape[1], *(1,) * (weight.ndim - 2))
    folded = rounded(product, weight.dtype, tuple(range(2, product.ndim)))
    if folded is None:
        return m.no("the scaled weight loses digits", w)
    if not affordable(m, folded.nbytes, w):
        return m.no("others read the weight, and a second one is large", w)
    return op.like(m.root, [x, op.constant(folded.reshape(weight.shape), folded_name(w)), *rest])


@rule(
    lambda op, x, w: op.one_of(*LAYERS)(x, w, 0),
    numerics=Reassociates,
    tags=("onnxscript:remove-zero-bias-from-conv", "onnxscript:remove-zero-bias-from-gemm"),
)
def drop_zero_bias(op: Builder, m: Match, x: ir.Value, w: ir.Value) -> Outcome:
    """A bias of zeros adds nothing (but may turn -0.0 into 0.0)."""
    if m.root.op_type == "Gemm" and m.version < 11:
        return m.no("Gemm needs a bias at this opset")
    return op.like(m.root, [x, w])


@rule(
    lambda op, x, xs, xz, w, ws, wz, ys, yz: op.QLinearConv(x, xs, xz, w, ws, wz, ys, yz, 0),
    numerics=Exact,
    tags=("onnxscript:remove-zero-bias-from-qlinear-conv",),
)
def drop_zero_bias_of_qlinear_conv(op: Builder, m: Match, **_: ir.Value) -> Outcome:
    """A QLinearConv's bias of zeros adds nothing."""
    return op.like(m.root, m.root.inputs[:8])
