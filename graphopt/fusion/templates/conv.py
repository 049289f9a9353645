"""Conv and FusedConv of floats in 1 to 3 dimensions.

https://onnx.ai/onnx/operators/onnx__Conv.html. Convolutions are direct, or use Winograd's minimal
filtering if the kernel has three or more taps, the stride is 1, and enough channels and tiles repay the
transforms. Those of one channel for each filter have a schedule of their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from graphopt import ir
from graphopt.analysis.symbolic import Dim
from graphopt.context import Context
from graphopt.fusion.blocked_layout import destinations, is_convolution, sources
from graphopt.fusion.loops.ir import CantFuse
from graphopt.fusion.template_policy import has_epilogue
from graphopt.fusion.template_table import Match, template
from graphopt.fusion.unknown_sizes import require_static_shape
from graphopt.util.lazy_dataclass import dataclass

Algorithm = Literal["direct", "depthwise", "winograd"]
#: Activations of FusedConv, and the number of their parameters.
_ACTIVATIONS = {"": 0, "Relu": 0, "Sigmoid": 0, "Tanh": 0, "LeakyRelu": 1, "HardSigmoid": 2, "Clip": 2}
#: Minimum number of channels and filters for Winograd's algorithm.
_MIN_CHANNELS = 16
#: Minimum number of filters of depthwise convolutions for vectors of the filters of different channels, and
#: the maximum number of their taps, which are summed up one by one.
_MIN_DEPTHWISE, _MOST_TAPS = 8, 128
#: Minimum number of positions for which depthwise convolutions are faster than onnxruntime's, and that of
#: those with more than 9 taps and no epilogue.
_MIN_POINTS, _MIN_POINTS_OF_MANY_TAPS = 196, 3136
#: Lanes of vectors with AVX-512.
_LANES = 16
#: Maximum predicted times of Winograd's algorithm, relative to onnxruntime: of kernels, and instead of direct
#: sums.
_FASTER, _AS_FAST = 0.95, 1.05
#: Largest padding, and distance of the first and last tap, in elements: a chunk copies padded inputs.
MOST_EXTENT = 1 << 20
#: Largest stride, in elements, so that products of sizes do not overflow.
_MOST_STRIDE = 1 << 30
#: Size of spatial axes of unknown size, by rank: a signal may be short, for which only direct sums are fast.
_TYPICAL = {3: 16, 4: 64, 5: 16}


@dataclass(frozen=True)
class ConvParameters:
    """Static parameters.

    Attributes:
        groups: number of groups.
        kernel, strides, dilations: of each spatial axis.
        pads: before all spatial axes, then after them; those of ``auto_pad`` are 0.
        auto_pad: ``NOTSET``, ``SAME_UPPER`` or ``SAME_LOWER``.
        activation: that of FusedConv; may be empty.
        activation_parameters: its parameters.
        algorithm: the schedule of the products.
    """

    groups: int
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]
    auto_pad: str = "NOTSET"
    activation: str = ""
    activation_parameters: tuple[float, ...] = ()
    algorithm: Algorithm = "direct"


def is_faster(match: Match, cx: Context) -> bool:
    """Whether the kernel is faster, by its measured times relative to onnxruntime's (docs/kernels.md).

    onnxruntime 1.31 is as fast as the template, at 1 thread with AVX-512, for convolutions of many channels
    to which Winograd's algorithm does not apply.
    """
    x, weights = match.operands[:2]
    assert x is not None and weights is not None
    found: ConvParameters = match.parameters
    if not is_fixed(weights) or not _is_known(match.results[0], cx):
        return False
    shape, sizes = _ints(cx.shape(weights)), typical_sizes(cx.shape(x))
    filters, depth = shape[0], math.prod(shape[1:])
    points = math.prod(_out(found, sizes[2:]))
    if found.algorithm == "winograd":
        return _winograd_ratio(found, shape, sizes) <= _FASTER
    if found.algorithm == "depthwise" and len(sizes) == 4:
        # 5×5 taps: 0.7 to 0.9 of the time with HardSwish; 1.0 to 1.2 without it up to 28×28 positions
        is_small = math.prod(found.kernel) <= 9 or has_epilogue(match.nodes[0])
        least = _MIN_POINTS if is_small else _MIN_POINTS_OF_MANY_TAPS
        return max(found.strides) == 1 and points >= least and not _is_between_blocked(match.nodes[0])
    if found.groups > 1:
        return len(sizes) != 4 and math.prod(found.kernel) >= 16
    if len(sizes) == 4:  # in onnxruntime's blocked layout, which is as fast, or by its matrices of patches
        return filters < 4 and depth >= 9
    if depth == 1 or filters == 1:
        return depth >= 16 and points >= 16
    return points <= 16


def _is_between_blocked(node: ir.Node) -> bool:
    """Whether onnxruntime may compute the input or a reader of ``node`` in its blocked layout."""
    (x, *_), (result, *_) = node.inputs, node.outputs
    assert x is not None
    before, behind = sources(x), destinations(result)
    if before is None or behind is None:
        return True
    return any(map(is_convolution, (*before, *behind))) or any(_is_concat(node) for node in behind)


def _is_concat(node: ir.Node | None) -> bool:
    return node is not None and (node.domain, node.op_type) == ("", "Concat")


def is_fixed(value: ir.Value) -> bool:
    """Whether ``value`` is a constant, or one that onnxruntime folds when it creates a session."""
    node = value.producer()
    if node is not None and (node.domain, node.op_type) == ("", "ConstantOfShape"):
        return node.inputs[0] is not None and ir.constant_of(node.inputs[0]) is not None
    return ir.constant_of(value) is not None


def _is_known(value: ir.Value, cx: Context) -> bool:
    return cx.shape(value) is not None


@template("Conv", "com.microsoft::FusedConv", is_faster=is_faster)
def conv(anchor: ir.Node, cx: Context) -> Match:
    """A convolution of known kernel size, with its bias, the addend of FusedConv, and its activation."""
    inputs: list[ir.Value | None] = [*anchor.inputs, None, None, None][:4]
    operands = [value if value is not None and value.name else None for value in inputs]
    for value in operands:
        if value is not None and cx.dtype(value) is not ir.DataType.FLOAT:
            raise CantFuse("no kernels for convolutions of other types than float")
        if value is not None and cx.shape(value) is None:
            raise CantFuse(f"the rank of {value.name!r} is unknown")
    x, weights, bias, addend = operands
    if x is None or weights is None:
        raise CantFuse("an operand is missing")
    if (bias is not None and cx.rank(bias) != 1) or (addend is not None and cx.rank(addend) != cx.rank(x)):
        raise CantFuse("the rank of its bias or addend is wrong")
    shape, dims = cx.shape(x) or (), require_static_shape(weights, cx)
    if len(dims) != len(shape):
        raise CantFuse("the rank of its weights is wrong")
    if not 3 <= len(dims) <= 5 or 0 in dims:
        raise CantFuse("no kernels for convolutions of other than 1 to 3 dimensions")
    parameters = _with_algorithm(_parameters(anchor, dims), dims, shape)
    return Match("conv", (anchor,), tuple(operands), (anchor.outputs[0],), parameters)


def _parameters(node: ir.Node, shape: tuple[int, ...]) -> ConvParameters:
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    rank = len(shape) - 2
    mode = str(attributes.get("auto_pad", "NOTSET"))
    pads = tuple(attributes.get("pads") or (0,) * (2 * rank)) if mode == "NOTSET" else (0,) * (2 * rank)
    found = ConvParameters(
        int(attributes.get("group", 1)),
        shape[2:],
        tuple(attributes.get("strides") or (1,) * rank),
        tuple(attributes.get("dilations") or (1,) * rank),
        pads,
        "NOTSET" if mode == "VALID" else mode,
        str(attributes.get("activation", "")),
        tuple(float(value) for value in attributes.get("activation_params") or ()),
    )
    if _ACTIVATIONS.get(found.activation) != len(found.activation_parameters):
        raise CantFuse(f"no kernels for the activation {found.activation}")
    kernel = tuple(attributes.get("kernel_shape") or found.kernel)
    lengths = [len(values) for values in (found.strides, found.dilations, kernel)]
    if kernel != found.kernel or lengths != [rank] * 3 or len(found.pads) != 2 * rank:
        raise CantFuse("its attributes contradict the shape of its weights")
    if min(found.strides) < 1 or min(found.dilations) < 1 or min(found.pads) < 0:
        raise CantFuse("its strides, dilations or pads are negative")
    extents = ((size - 1) * step for size, step in zip(found.kernel, found.dilations, strict=True))
    if max(*extents, *found.pads) > MOST_EXTENT or max(found.strides) > _MOST_STRIDE:
        raise CantFuse("its strides, dilations or pads are too large")
    if found.auto_pad not in ("NOTSET", "SAME_UPPER", "SAME_LOWER"):
        raise CantFuse(f"auto_pad {found.auto_pad} is unknown")
    if found.auto_pad != "NOTSET" and max(found.dilations) > 1:
        raise CantFuse(f"onnxruntime has no dilations with auto_pad {found.auto_pad}")
    require_uncropped(found.auto_pad, found.strides, found.kernel)
    if found.groups < 1 or shape[0] % found.groups:
        raise CantFuse("its number of filters is not a multiple of its number of groups")
    return found


def require_uncropped(auto_pad: str, strides: Sequence[int], kernel: Sequence[int]) -> None:
    """Refuse strides for which onnxruntime 1.31 crops the operand, unlike the standard.

    Raises:
        CantFuse: a stride exceeds the size of the kernel by more than two.
    """
    larger = (step > size + 2 for step, size in zip(strides, kernel, strict=True))
    if auto_pad.startswith("SAME") and any(larger):
        raise CantFuse(f"onnxruntime crops the operand for strides larger than the kernel with {auto_pad}")


# The algorithm -------------------------------------------------------------------------------


def _with_algorithm(
    found: ConvParameters, shape: tuple[int, ...], dims: Sequence[Dim | None]
) -> ConvParameters:
    """``found`` with the algorithm for weights of ``shape`` and an input of ``dims``."""
    if found.groups > 1 and shape[1] == 1 and shape[0] >= _MIN_DEPTHWISE:
        is_short = math.prod(shape[2:]) <= _MOST_TAPS
        return replace(found, algorithm="depthwise" if is_short else "direct")
    if found.groups > 1 or min(shape[:2]) < _MIN_CHANNELS or not _transformed(found, dims):
        return found
    if _winograd_ratio(found, shape, typical_sizes(dims)) > _AS_FAST:
        return found
    return replace(found, algorithm="winograd")


def _winograd_ratio(found: ConvParameters, shape: Sequence[int], sizes: Sequence[int]) -> float:
    """The predicted time of Winograd's algorithm, relative to onnxruntime's direct convolution.

    The time is that of the products, at nearly the same share of the peak, and of the transforms of a vector
    of tiles, which take the time of about 200 products for each channel, and of about 80 for each filter.
    """
    axes = [axis for axis, taps in enumerate(found.kernel) if taps > 1]
    out = _out(found, sizes[2:])
    tiles, products = math.prod(out), 1.0
    for axis in axes:
        taps = found.kernel[axis]
        tiles = -(-tiles // 2)
        products *= (3 * -(-taps // 3) + taps // 3) / (2 * taps)
    row = max(1, -(-out[axes[-1]] // 2))
    if not tiles:
        return math.inf
    vectors, fill = -(-tiles // _LANES) * _LANES / tiles, -(-row // _LANES) * _LANES / row
    return 1.12 * products * vectors + 5 * fill / shape[0] + 2 / shape[1]


def _transformed(found: ConvParameters, dims: Sequence[Dim | None]) -> bool:
    """Whether Winograd's algorithm applies to the last axis, or the last two axes; others have one tap."""
    axes = list(range(len(found.kernel)))
    while len(axes) > 1 and found.kernel[axes[-1]] == 1 and dims[2 + axes[-1]] == 1:
        axes.pop()
    rank = len(found.kernel)
    if any(stride > 1 for stride in found.strides) or any(dilation > 1 for dilation in found.dilations):
        return False
    if found.auto_pad != "NOTSET":
        return False
    for axis in range(rank):
        if found.kernel[axis] == 1 and (found.pads[axis] or found.pads[rank + axis]):
            return False
        if found.kernel[axis] > 1 and max(found.pads[axis], found.pads[rank + axis]) >= found.kernel[axis]:
            return False
    transformed = [axis for axis in axes[-2:] if found.kernel[axis] >= 3]
    others = [axis for axis in range(rank) if axis not in transformed]
    return axes[-1] in transformed and all(found.kernel[axis] == 1 for axis in others)


def _ints(shape: Sequence[Dim] | None) -> list[int]:
    return [dim for dim in shape or () if isinstance(dim, int)]


def typical_sizes(shape: Sequence[Dim | None] | None) -> list[int]:
    """``shape`` with sizes that are usual for convolutions in place of unknown ones."""
    typical = _TYPICAL.get(len(shape or ()), 1)
    return [dim if isinstance(dim, int) else typical for dim in shape or ()]


def _out(found: ConvParameters, sizes: Sequence[int]) -> list[int]:
    """The spatial sizes of the result for an input of spatial ``sizes``."""
    rank, out = len(sizes), []
    for axis, size in enumerate(sizes):
        if found.auto_pad != "NOTSET":
            out.append(-(-size // found.strides[axis]))
            continue
        extent = (found.kernel[axis] - 1) * found.dilations[axis] + 1
        padded = size + found.pads[axis] + found.pads[rank + axis]
        out.append(max(0, (padded - extent) // found.strides[axis] + 1))
    return out
