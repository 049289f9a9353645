"""Conv of dequantized operands in 2 dimensions with a quantized result, optionally after Relu or Clip.

The result has the bits of the operators in onnxruntime without optimizations, except for rounding errors of
more than six standard deviations. It is computed on integers, except for elements that depend on the
rounding of sums (``quantized_conv.h``).
"""

from __future__ import annotations

import math

from graphopt import ir
from graphopt.context import Context
from graphopt.fusion.loops.ir import CantFuse
from graphopt.fusion.template_table import Match, template
from graphopt.fusion.templates.byte_conv import (
    FEW_CHANNELS,
    ByteConvParameters,
    conv_parameters,
    is_faster_in_groups,
)
from graphopt.fusion.templates.conv import typical_sizes
from graphopt.fusion.templates.quantized_product import (
    BYTES,
    Quantization,
    one_quantization,
    quantization_of_axis,
    quantizer,
)
from graphopt.util.lazy_dataclass import dataclass

#: Maximum number of products of a sum, so that sums, and sums of squares, are less than 2³¹.
_MOST_DEPTH = 1 << 14
#: Maximum number of products of a sum for which kernels of two uint8 operands are faster.
_FEW_PRODUCTS = 640
#: Minimum number of result positions for which these kernels were measured.
_MIN_POINTS = 49


@dataclass(frozen=True)
class QuantizedConvParameters:
    """Static parameters.

    Attributes:
        conv: the parameters of the integer convolution.
        x, weights, result: scales and zero points; for ``weights``, ``None`` if they vary by filter.
        bias_scale: the scale of an integer bias; ``None`` for a float bias, scales by filter, or no bias.
        low, high: bounds of the result before quantization.
    """

    conv: ByteConvParameters
    x: Quantization
    weights: Quantization
    result: Quantization
    bias_scale: float | None
    low: float
    high: float


def is_faster(match: Match, cx: Context) -> bool:
    """Whether onnxruntime is slower. It computes on integers if the input is uint8.

    At 1 thread on AVX-512 with VNNI, the kernel took 0.2 to 0.8 of the time of onnxruntime 1.31 for int8. For
    uint8, elements of long sums are recomputed in single precision more often: two uint8 operands took 0.35
    to 0.8 up to 576 products, 0.95 for 1,152, and 1.3 for 2,304. uint8 times int8 took 1.2 to 3, but
    0.4 for few channels. Groups are as in :mod:`.byte_conv`. Results with fewer than 7×7 positions take a few
    microseconds, and have no kernel.
    """
    x, weights = match.operands[:2]
    assert x is not None and weights is not None
    if cx.dtype(x) is ir.DataType.INT8:
        return True
    if match.parameters.conv.groups > 1:
        return is_faster_in_groups(match, cx)
    shape = cx.static_shape(weights)
    if shape is None or math.prod(typical_sizes(cx.shape(match.results[0]))[2:]) < _MIN_POINTS:
        return False
    has_few = math.prod(shape[1:]) <= _FEW_PRODUCTS
    return shape[1] <= FEW_CHANNELS or (has_few and cx.dtype(weights) is ir.DataType.UINT8)


@template("Conv", is_faster=is_faster)
def quantized_conv(anchor: ir.Node, cx: Context) -> Match:
    """x [batch, channels, height, width], weights [filters, channels of a group, kernel height, width]."""
    x, x_node = dequantized(anchor, 0, cx)
    weights, w_node = dequantized(anchor, 1, cx)
    shape = cx.static_shape(weights)
    if cx.rank(x) != 4 or shape is None or len(shape) != 4:
        raise CantFuse("its input does not have 4 axes, or the shape of its weights is unknown")
    if 0 in shape or math.prod(shape[1:]) > _MOST_DEPTH:
        raise CantFuse("its weights are empty, or sums have too many products")
    w_quantization, scales, zeros = quantization_of_axis(w_node, weights, 4, cx)
    bias, bias_scales, bias_scale, bias_nodes = quantized_bias(anchor, shape[0], cx)
    low, high, behind = quantizer_behind(anchor, cx)
    result = behind[-1].outputs[0]
    found = QuantizedConvParameters(
        conv_parameters(anchor, shape, (scales is not None, zeros is not None)),
        one_quantization(x_node, x, cx),
        w_quantization,
        one_quantization(behind[-1], result, cx),
        bias_scale,
        low,
        high,
    )
    nodes = tuple(dict.fromkeys((anchor, x_node, w_node, *bias_nodes, *behind)))
    operands = (x, weights, scales, zeros, bias, bias_scales)
    return Match("quantized_conv", nodes, operands, (result,), found)


def dequantized(node: ir.Node, index: int, cx: Context) -> tuple[ir.Value, ir.Node]:
    """The quantized operand, and the node that dequantizes it."""
    value = node.inputs[index] if index < len(node.inputs) else None
    before = None if value is None else quantizer(value.producer(), "DequantizeLinear")
    if before is None or (found := before.inputs[0]) is None or cx.dtype(found) not in BYTES:
        raise CantFuse("its operands are not dequantized 8-bit integers")
    return found, before


def quantized_bias(
    node: ir.Node, count: int, cx: Context
) -> tuple[ir.Value | None, ir.Value | None, float | None, tuple[ir.Node, ...]]:
    """The bias of ``count`` elements, its scales or scale if it is quantized, and its dequantizer."""
    value = node.inputs[2] if len(node.inputs) > 2 else None
    if value is None or not value.name:
        return None, None, None, ()
    before = quantizer(value.producer(), "DequantizeLinear")
    bias = value if before is None else before.inputs[0]
    if bias is None or cx.static_shape(bias) != (count,):
        raise CantFuse("its bias does not have one element for each channel of the result")
    if before is None or cx.dtype(bias) is not ir.DataType.INT32:
        if cx.dtype(value) is not ir.DataType.FLOAT:
            raise CantFuse("no kernels for a bias of this type")
        return value, None, None, ()
    zero = before.inputs[2] if len(before.inputs) > 2 else None
    known = None if zero is None else cx.constant(zero)
    if zero is not None and (known is None or known.any()):
        raise CantFuse("its bias has a zero point")
    scales = before.inputs[1]
    scale = None if scales is None else cx.constant(scales)
    if scales is None or cx.dtype(scales) is not ir.DataType.FLOAT:
        raise CantFuse("no kernels for scales of types other than float")
    if scale is not None and scale.size == 1:
        return bias, None, float(scale.reshape(-1)[0]), (before,)
    axis = before.attributes["axis"].value if "axis" in before.attributes else 1
    if axis not in (0, -1) or cx.static_shape(scales) != (count,):
        raise CantFuse("its bias has neither one known scale nor one scale for each element")
    return bias, scales, None, (before,)


def quantizer_behind(node: ir.Node, cx: Context) -> tuple[float, float, tuple[ir.Node, ...]]:
    """Bounds of the result, and the nodes that compute them and quantize it."""
    reader = _only_reader(node)
    low, high, found = -math.inf, math.inf, []
    if reader.domain == "" and reader.op_type in ("Relu", "Clip"):
        low, high = (0.0, math.inf) if reader.op_type == "Relu" else _bounds(reader, cx)
        found.append(reader)
        reader = _only_reader(reader)
    behind = quantizer(reader, "QuantizeLinear")
    if behind is None or behind.inputs[0] is not (found or [node])[-1].outputs[0]:
        raise CantFuse("its result is not quantized")
    return low, high, (*found, behind)


def _only_reader(node: ir.Node) -> ir.Node:
    value = node.outputs[0]
    readers = list(ir.readers(value))
    if len(readers) != 1 or value.is_graph_output():
        raise CantFuse("its result has readers other than a quantizer")
    return readers[0]


def _bounds(clip: ir.Node, cx: Context) -> tuple[float, float]:
    """The bounds of Clip, which are inputs since opset 11."""
    found = []
    for index, default in ((1, -math.inf), (2, math.inf)):
        value = clip.inputs[index] if index < len(clip.inputs) else None
        if value is None or not value.name:
            found.append(default)
            continue
        known = cx.constant(value)
        if known is None or known.size != 1 or math.isnan(float(known.reshape(-1)[0])):
            raise CantFuse("the bounds of its result are unknown")
        found.append(float(known.reshape(-1)[0]))
    if {"min", "max"} & set(clip.attributes):
        raise CantFuse("the bounds of its result are attributes")
    return min(found), found[1]  # the upper bound is applied last
