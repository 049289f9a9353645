"""Convolutions of bytes in 2 dimensions: QLinearConv and ConvInteger.

https://onnx.ai/onnx/operators/onnx__QLinearConv.html. Integers are exact modulo 2³², and are quantized in the
same steps as by onnxruntime without optimizations, so that results have the same bits. (Its kernels saturate
sums of two products on x86-64 machines without VNNI.)
"""

from __future__ import annotations

import math

from graphopt import ir
from graphopt.context import Context
from graphopt.fusion.loops.ir import CantFuse
from graphopt.fusion.template_table import Match, template
from graphopt.fusion.templates.conv import require_uncropped
from graphopt.fusion.templates.quantized_product import BYTES
from graphopt.fusion.unknown_sizes import require_static_shape
from graphopt.util.lazy_dataclass import dataclass

#: For each operator, the indices of inputs: x, weights, scale of x, scales of weights, zero of x, zeros of
#: weights, bias, scale and zero of the result.
_INPUTS: dict[str, tuple[int | None, ...]] = {
    "ConvInteger": (0, 1, None, None, 2, 3, None, None, None),
    "QLinearConv": (0, 3, 1, 4, 2, 5, 8, 6, 7),
}
_X, _WEIGHTS, _X_SCALE, _W_SCALES, _X_ZERO, _W_ZEROS, _BIAS, _SCALE, _ZERO = range(9)
_MODES = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")
#: Largest stride, padding, and distance of the first and last tap, in elements: inputs are padded in memory.
_MOST_EXTENT = 1 << 12
#: Number of channels up to which onnxruntime multiplies uint8 by int8 slowly.
FEW_CHANNELS = 4
#: Minimum number of positions for which depthwise convolutions are faster.
_MIN_POINTS = 196


@dataclass(frozen=True)
class ByteConvParameters:
    """Static parameters.

    Attributes:
        groups: number of groups.
        kernel, strides, dilations: of both axes.
        pads: before both axes, then after them; those of ``auto_pad`` are 0.
        auto_pad: ``NOTSET``, ``SAME_UPPER`` or ``SAME_LOWER``.
        by_filter: whether scales, and zero points, of weights are those of filters.
    """

    groups: int
    kernel: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    pads: tuple[int, int, int, int]
    auto_pad: str
    by_filter: tuple[bool, bool]


def is_faster(match: Match, cx: Context) -> bool:
    """Whether onnxruntime is slower: it multiplies uint8 by int8 near the peak of the machine.

    For two operands of uint8 the kernel took 0.35 to 0.65 of onnxruntime's time, and for int8 0.05 to 0.2;
    for uint8 times int8 1.1 to 1.3, but 0.4 to 0.7 for few channels. Measured with onnxruntime 1.31 at 1
    thread on AVX-512 with VNNI.
    """
    x, weights = match.operands[:2]
    assert x is not None and weights is not None
    if match.parameters.groups > 1:
        return is_faster_in_groups(match, cx)
    if cx.dtype(x) is ir.DataType.INT8 or cx.dtype(weights) is ir.DataType.UINT8:
        return True
    shape = cx.static_shape(weights)
    return shape is not None and shape[1] <= FEW_CHANNELS


def is_faster_in_groups(match: Match, cx: Context) -> bool:
    """Whether onnxruntime is slower for several groups, measured in the same way.

    Groups of several channels took 0.02 to 0.25 of onnxruntime's time. Depthwise convolutions of two uint8
    operands took 0.4 to 0.9 for 196 positions or more, and 1.2 to 1.5 for 49. For uint8 times int8, they took
    0.55 to 1.5 alone, but were not faster between convolutions, which onnxruntime computes channels last.
    """
    x, weights = match.operands[:2]
    assert x is not None and weights is not None
    shape = cx.static_shape(weights)
    if shape is None or shape[1] > 1:
        return shape is not None
    if cx.dtype(x) is ir.DataType.UINT8 and cx.dtype(weights) is ir.DataType.INT8:
        return False
    sizes = [dim for dim in (cx.shape(match.results[0]) or ())[2:] if isinstance(dim, int)]
    return len(sizes) == 2 and math.prod(sizes) >= _MIN_POINTS


@template("QLinearConv", "ConvInteger", is_faster=is_faster)
def byte_conv(anchor: ir.Node, cx: Context) -> Match:
    """x [batch, channels, height, width], weights [filters, channels of a group, kernel height, width]."""
    inputs = dict(enumerate(anchor.inputs))
    operands = [None if index is None else inputs.get(index) for index in _INPUTS[anchor.op_type]]
    x, weights, bias = operands[_X], operands[_WEIGHTS], operands[_BIAS]
    if x is None or weights is None:
        raise CantFuse("an input is missing")
    if cx.dtype(x) not in BYTES or cx.dtype(weights) not in BYTES:
        raise CantFuse("no kernels for the types of its operands")
    shape = require_static_shape(weights, cx)
    if cx.rank(x) != 4 or len(shape) != 4:
        raise CantFuse("its input or its weights do not have 4 axes")
    if 0 in shape:
        raise CantFuse("its weights are empty")
    for index in (_X_SCALE, _W_SCALES, _SCALE):
        value = operands[index]
        if value is not None and cx.dtype(value) is not ir.DataType.FLOAT:
            raise CantFuse("no kernels for other scales than floats")
    for index in (_X_SCALE, _X_ZERO, _SCALE, _ZERO):
        if operands[index] is not None and _by_filter(operands[index], 0, cx):
            raise CantFuse("its scale or zero point is not one number")
    if bias is not None and (cx.dtype(bias) is not ir.DataType.INT32 or cx.static_shape(bias) != shape[:1]):
        raise CantFuse("its bias is not one integer for each filter")
    by_filter = (_by_filter(operands[_W_SCALES], shape[0], cx), _by_filter(operands[_W_ZEROS], shape[0], cx))
    found = conv_parameters(anchor, shape, by_filter)
    return Match("byte_conv", (anchor,), tuple(operands), (anchor.outputs[0],), found)


def _by_filter(value: ir.Value | None, filters: int, cx: Context) -> bool:
    """Whether there is one number for each filter; false for one number.

    Raises:
        CantFuse: there are other numbers, or their count is unknown.
    """
    shape = () if value is None else cx.static_shape(value)
    if shape in ((), (1,)):
        return False
    if shape != (filters,):
        raise CantFuse("its scales or zero points are neither one number nor one for each filter")
    return True


def conv_parameters(
    node: ir.Node, shape: tuple[int, ...], by_filter: tuple[bool, bool]
) -> ByteConvParameters:
    """The parameters of a convolution with weights of ``shape``; raises CantFuse if there is no kernel."""
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    groups = int(attributes.get("group", 1))
    if groups < 1 or shape[0] % groups:
        raise CantFuse("its number of filters is not a multiple of its number of groups")
    mode = str(attributes.get("auto_pad", "NOTSET"))
    kernel = tuple(attributes.get("kernel_shape") or shape[2:])
    strides = tuple(attributes.get("strides") or (1, 1))
    dilations = tuple(attributes.get("dilations") or (1, 1))
    pads = tuple(attributes.get("pads") or (0,) * 4) if mode == "NOTSET" else (0,) * 4
    if kernel != tuple(shape[2:]) or [len(strides), len(dilations), len(pads)] != [2, 2, 4]:
        raise CantFuse("its attributes contradict the shape of its weights")
    if min(*strides, *dilations) < 1 or min(pads) < 0 or mode not in _MODES:
        raise CantFuse("its attributes are invalid")
    if mode.startswith("SAME") and max(dilations) > 1:
        raise CantFuse("no kernels for dilated taps with automatic padding")
    require_uncropped(mode, strides, kernel)
    extents = ((size - 1) * step for size, step in zip(kernel, dilations, strict=True))
    if max(*extents, *pads, *strides) > _MOST_EXTENT:
        raise CantFuse("its strides, dilations or pads are too large")
    return ByteConvParameters(
        groups,
        (kernel[0], kernel[1]),
        (strides[0], strides[1]),
        (dilations[0], dilations[1]),
        (pads[0], pads[1], pads[2], pads[3]),
        "NOTSET" if mode == "VALID" else mode,
        by_filter,
    )
