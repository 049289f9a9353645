"""Layers with a weight and a bias: Conv, ConvTranspose, Gemm.

A scale and shift per channel of their result can be folded into weight and bias.
"""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np

from graphopt import ir
from graphopt.rewrite import Builder, Match
from graphopt.rewrite.traced_array import TracedArray
from graphopt.rules.building_blocks.broadcasting import aligns_right, along_axis
from graphopt.rules.building_blocks.computed_constants import affordable, exact, rounded
from graphopt.rules.building_blocks.operands import int_of, operand

#: Operators with channels on axis 1 of the result, and weight and bias as inputs 1 and 2.
LAYERS = ("Conv", "ConvTranspose", "Gemm")


def channels_of(m: Match, layer: ir.Node) -> int | None:
    """The number of channels of the layer's result."""
    shape = m.shape(layer.inputs[1])
    if not shape:
        return None
    match layer.op_type:
        case "Conv":
            count: Any = shape[0]
        case "ConvTranspose":
            count = shape[1] * int_of(m, layer, "group", 1)
        case _:
            count = shape[0 if int_of(m, layer, "transB", 0) else 1]
    return count if isinstance(count, int) else None


def by_channel(m: Match, layer: ir.Node, numbers: TracedArray | None) -> TracedArray | None:
    """``numbers``, which broadcast with the layer's result, reduced to one number per channel.

    ``None`` if they differ within a channel or widen the result.
    """
    channels, rank = channels_of(m, layer), m.rank(layer.inputs[1])
    if not aligns_right(m) or numbers is None or channels is None or rank is None:
        return None
    return along_axis(numbers, 1, rank, channels)


def with_affine(
    op: Builder,
    m: Match,
    layer: ir.Node,
    scale: TracedArray | None,
    shift: TracedArray | None,
    replaced: tuple[ir.Value, ...] = (),
) -> ir.Value:
    """The layer with ``scale`` and ``shift`` of its result folded in.

    Args:
        scale, shift: float64, one number per channel; ``None`` for 1 and 0.
        replaced: the constants of scale and shift; the new bias may be as large as they are.
    """
    x, weight, bias = layer.inputs[0], layer.inputs[1], operand(layer, 2)
    assert x is not None and weight is not None
    dtype = m.dtype(layer.outputs[0])
    if dtype is None:
        m.refuse("type unknown", layer.outputs[0])
    if scale is not None:
        weight = folded_weight(op, m, weight, _scaled_weight(m, layer, scale))
    changed: dict[str, Any] = {}
    if bias is not None or shift is not None:
        total = _new_bias(m, layer, bias, scale, shift)
        if total is None:
            m.refuse("the bias is not constant", bias)
        folded = rounded(total, dtype.numpy(), tuple(range(total.ndim)))
        if folded is None:
            m.refuse("the bias becomes too large", bias)
        if not affordable(m, folded.nbytes, bias, *replaced):
            m.refuse("the new bias is larger than the constants that it replaces", bias)
        bias = op.constant(folded, folded_name(bias or layer.outputs[0]))
        if layer.op_type == "Gemm":
            changed["beta"] = None
    return op.like(layer, [x, weight] if bias is None else [x, weight, bias], **changed)


def folded_weight(op: Builder, m: Match, weight: ir.Value, folded: TracedArray | None) -> ir.Value:
    """The constant ``folded`` in place of ``weight``.

    Refuses if it is ``None``: the weight is not constant, or its change loses digits.
    """
    if folded is None:
        m.refuse("the weight is not constant, or the scaled one loses digits", weight)
    if not affordable(m, folded.nbytes, weight):
        m.refuse("the weight has other readers, and a copy is large", weight, shared=True)
    return op.constant(folded, folded_name(weight))


def folded_name(value: ir.Value) -> str:
    """A name for the constant that replaces ``value``."""
    return re.sub(r"_folded(_\d+)?$", "", value.name or "constant") + "_folded"


def _scaled_weight(m: Match, layer: ir.Node, scale: TracedArray) -> TracedArray | None:
    array = m.traced(layer.inputs[1])
    if array is None:
        return None
    weight = exact(array)
    match layer.op_type:
        case "Conv":
            grouped, factor, over = weight, _spread(scale, 0, weight.ndim), list(range(1, weight.ndim))
        case "ConvTranspose":  # (C, M / group, …): the outputs of a group read the inputs of the group
            group = int_of(m, layer, "group", 1)
            if not group or weight.shape[0] % group:
                return None
            grouped = weight.reshape(group, weight.shape[0] // group, *weight.shape[1:])
            factor = scale.reshape(group, 1, weight.shape[1], *(1,) * (weight.ndim - 2))
            over = [index for index in range(grouped.ndim) if index not in (0, 2)]
        case _:
            axis = 0 if int_of(m, layer, "transB", 0) else 1
            grouped, factor, over = weight, _spread(scale, axis, 2), [1 - axis]
    folded = rounded(grouped * factor, array.dtype, tuple(over))
    return None if folded is None else folded.reshape(*weight.shape)


def _spread(numbers: TracedArray, axis: int, rank: int) -> TracedArray:
    return numbers.reshape(*(-1 if index == axis else 1 for index in range(rank)))


def _new_bias(
    m: Match,
    layer: ir.Node,
    bias: ir.Value | None,
    scale: TracedArray | None,
    shift: TracedArray | None,
) -> TracedArray | None:
    total = TracedArray.of(np.zeros(1))
    if bias is not None:
        array = m.traced(bias)
        if array is None:
            return None
        total = exact(array)
        if layer.op_type == "Gemm":
            beta = m.attribute(layer, "beta")
            if not isinstance(beta, float) or not math.isfinite(beta):
                return None
            total = total * beta
    if scale is not None:
        total = total * scale
    return total if shift is None else total + shift
