"""Decompositions of operators into simpler ones, by the pass ``decompose``."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from graphopt import ir
from graphopt.analysis import symbolic
from graphopt.rewrite import Builder, Exact, Match, Outcome, Reassociates, rule
from graphopt.rules.building_blocks.axes import axes_of, axis_of, reduce, squeeze, unsqueeze
from graphopt.rules.building_blocks.operands import int_of
from graphopt.rules.building_blocks.reshape_targets import reshape

_FLOATS = (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16)


@rule(lambda op, x: op.Softsign(x), numerics=Reassociates, pass_="decompose")
def decompose_softsign(op: Builder, m: Match, x: ir.Value) -> Outcome:
    """Softsign(x) → x / (1 + |x|)."""
    one = _number(op, m, x, 1)
    return op.Div(x, op.Add(op.Abs(x), one))


@rule(lambda op, x: op.ThresholdedRelu(x), numerics=Exact, pass_="decompose")
def decompose_thresholded_relu(op: Builder, m: Match, x: ir.Value) -> Outcome:
    """ThresholdedRelu(x) → Where(x > alpha, x, 0), for alpha >= 0."""
    alpha = m.attribute(m.root, "alpha")
    limit, zero = _number(op, m, x, alpha), _number(op, m, x, 0)
    if alpha < 0:
        return m.no("onnxruntime's Where may return 0.0 for an element of -0.0", x)
    return op.Where(op.Greater(x, limit), x, zero)


@rule(lambda op, x: op.Celu(x), numerics=Reassociates, pass_="decompose")
def decompose_celu(op: Builder, m: Match, x: ir.Value) -> Outcome:
    """Celu(x) → alpha * Elu(x / alpha), for alpha > 0."""
    alpha = m.attribute(m.root, "alpha")
    factor = _number(op, m, x, alpha)
    if alpha <= 0:
        return m.no("alpha is not positive", x)
    return op.Elu(x) if alpha == 1 else op.Mul(op.Elu(op.Div(x, factor)), factor)


@rule(lambda op, x: op.HardSigmoid(x), numerics=Reassociates, pass_="decompose")
def decompose_hard_sigmoid(op: Builder, m: Match, x: ir.Value) -> Outcome:
    """HardSigmoid(x) → Max(Min(alpha * x + beta, 1), 0)."""
    return _ramp(op, m, x, m.attribute(m.root, "alpha"), m.attribute(m.root, "beta"))


@rule(lambda op, x: op.HardSwish(x), numerics=Reassociates, pass_="decompose")
def decompose_hard_swish(op: Builder, m: Match, x: ir.Value) -> Outcome:
    """HardSwish(x) → x * Max(Min(x / 6 + 1/2, 1), 0)."""
    return op.Mul(x, _ramp(op, m, x, 1 / 6, 0.5))


@rule(
    lambda op, x, scale, bias: op.LayerNormalization(x, scale, bias.optional()),
    numerics=Reassociates,
    pass_="decompose",
)
def decompose_layer_normalization(
    op: Builder, m: Match, x: ir.Value, scale: ir.Value, bias: ir.Value | None
) -> Outcome:
    """LayerNormalization(x) → (x - mean) / Sqrt(variance + epsilon) * scale + bias; float only."""
    axis = axis_of(m, m.root, m.rank(x), -1)
    if axis is None:
        return m.no("the rank is unknown", x)
    normal = _normalized(op, m, x, range(axis, m.rank(x) or 0))
    scaled = op.Mul(normal, scale)
    return (scaled if bias is None else op.Add(scaled, bias),)


@rule(
    lambda op, x, scale, bias: op.GroupNormalization(x, scale, bias), numerics=Reassociates, pass_="decompose"
)
def decompose_group_normalization(
    op: Builder, m: Match, x: ir.Value, scale: ir.Value, bias: ir.Value
) -> Outcome:
    """GroupNormalization(x) → (x - mean) / Sqrt(variance + epsilon) * scale + bias, per group; float only.

    Only from opset 21 on, with scale and bias per channel.
    """
    shape, groups = m.shape(x), int_of(m, m.root, "num_groups", 0)
    inner = ir.all_ints(None if shape is None else shape[1:])
    if m.version < 21 or not inner or not groups or 0 in inner or inner[0] % groups:
        return m.no("the scale is one for each group, or the shape of a sample is unknown", x)
    grouped = reshape(op, m, x, (0, groups, math.prod(inner) // groups))
    normal = _normalized(op, m, grouped, (2,))
    axes = range(1, len(inner))
    scale, bias = (unsqueeze(op, m, value, axes) for value in (scale, bias))
    return op.Add(op.Mul(reshape(op, m, normal, (0, *inner)), scale), bias)


@rule(lambda op, x, axes: op.ReduceLogSumExp(x, axes.optional()), numerics=Reassociates, pass_="decompose")
def decompose_reduce_log_sum_exp(op: Builder, m: Match, x: ir.Value, axes: ir.Value | None) -> Outcome:
    """ReduceLogSumExp(x) → Log(ReduceSum(Exp(x - c))) + c, with c = ReduceMax(x), or 0 if that is infinite.

    Float only, over axes that are not empty. Not within ``x - ReduceLogSumExp(x)``, which is LogSoftmax.
    """
    over, shape, result = axes_of(m, m.root), m.shape(x), m.root.outputs[0]
    if not over or shape is None or any(symbolic.bounds(shape[axis])[0] < 1 for axis in over):
        return m.no("the axes are unknown, or may be empty", x)
    if m.dtype(x) is not ir.DataType.FLOAT:
        return m.no("the numbers are not of type float", x)
    if any(reader.op_type == "Sub" and reader.inputs[0] is x for reader in ir.readers(result)):
        return m.no("it is part of LogSoftmax", x)
    highest = reduce(op, m, "ReduceMax", x, over, keepdims=True)
    is_finite = op.Less(op.Abs(highest), _number(op, m, x, math.inf))
    shift = op.Where(is_finite, highest, _number(op, m, x, 0))
    total = reduce(op, m, "ReduceSum", op.Exp(op.Sub(x, shift)), over, keepdims=True)
    found = op.Add(op.Log(total), shift)
    return found if int_of(m, m.root, "keepdims", 1) else squeeze(op, m, found, over)


@rule(lambda op, x: op.Shrink(x), numerics=Exact, pass_="decompose")
def decompose_shrink(op: Builder, m: Match, x: ir.Value) -> Outcome:
    """Shrink(x) → Where(x < -lambd, x + bias, Where(x > lambd, x - bias, 0)); float only."""
    limit, bias = m.attribute(m.root, "lambd"), m.attribute(m.root, "bias")
    if m.dtype(x) is not ir.DataType.FLOAT or not isinstance(limit, float) or not isinstance(bias, float):
        return m.no("the numbers are not of type float, or an attribute is unknown", x)
    low, high, shift, zero = (_number(op, m, x, number) for number in (-limit, limit, bias, 0))
    above = op.Where(op.Greater(x, high), op.Sub(x, shift), zero)
    return op.Where(op.Less(x, low), op.Add(x, shift), above)


def _number(op: Builder, m: Match, x: ir.Value, number: object) -> ir.Value:
    """``number`` in the dtype of ``x``."""
    dtype = m.dtype(x)
    if dtype not in _FLOATS or not isinstance(number, int | float):
        m.refuse("the dtype or an attribute is unknown", x)
    return op.constant(np.array(number, dtype.numpy()))


def _ramp(op: Builder, m: Match, x: ir.Value, alpha: object, beta: object) -> ir.Value:
    """max(0, min(1, alpha · x + beta))."""
    slope, offset, one, zero = (_number(op, m, x, number) for number in (alpha, beta, 1, 0))
    return op.Max(op.Min(op.Add(op.Mul(x, slope), offset), one), zero)


def _normalized(op: Builder, m: Match, x: ir.Value, axes: Sequence[int]) -> ir.Value:
    """``(x - mean) / deviation``; refuses unless the operator would compute in float."""
    epsilon = m.attribute(m.root, "epsilon")
    if m.dtype(m.root.inputs[0]) is not ir.DataType.FLOAT or not isinstance(epsilon, float):
        m.refuse("the numbers are not of type float, or an attribute is unknown", m.root.inputs[0])
    centred = op.Sub(x, reduce(op, m, "ReduceMean", x, axes, keepdims=True))
    variance = reduce(op, m, "ReduceMean", op.Mul(centred, centred), axes, keepdims=True)
    return op.Div(centred, op.Sqrt(op.Add(variance, np.array(epsilon, np.float32))))
