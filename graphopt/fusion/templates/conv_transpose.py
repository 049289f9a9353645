"""ConvTranspose of floats in 1 to 3 dimensions.

https://onnx.ai/onnx/operators/onnx__ConvTranspose.html. Outputs a stride apart are a convolution with some of
the taps, so that a ConvTranspose is as many convolutions as the product of the strides.
"""

from __future__ import annotations

import math

import numpy as np

from graphopt import ir
from graphopt.context import Context
from graphopt.fusion.loops.ir import CantFuse
from graphopt.fusion.template_policy import has_epilogue
from graphopt.fusion.template_table import Match, template
from graphopt.fusion.templates.conv import MOST_EXTENT, typical_sizes
from graphopt.fusion.unknown_sizes import require_static_shape
from graphopt.util.lazy_dataclass import dataclass

#: Largest stride of an axis, and product of the strides of all axes but the last: tables of phases are
#: computed in each run.
_MOST_STRIDE, _MOST_PHASES = 4096, 64

#: Minimum number of positions of the input, maximum number of weights of a group, and minimum number of its
#: filters, for which kernels are faster.
_MIN_POINTS, _MOST_WEIGHTS, _MIN_FILTERS = 64, 1 << 16, 8


@dataclass(frozen=True)
class ConvTransposeParameters:
    """Static parameters.

    Attributes:
        groups: number of groups.
        kernel, strides, dilations, output_padding: of each spatial axis.
        pads: before all spatial axes, then after them; those of ``auto_pad`` are 0.
        auto_pad: ``NOTSET``, ``SAME_UPPER`` or ``SAME_LOWER``.
        output_shape: given spatial sizes; empty if they follow from the other parameters.
    """

    groups: int
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    output_padding: tuple[int, ...]
    pads: tuple[int, ...]
    auto_pad: str = "NOTSET"
    output_shape: tuple[int, ...] = ()


def is_faster(match: Match, cx: Context) -> bool:
    """Whether the kernel is faster, by its measured times relative to onnxruntime's (docs/kernels.md).

    onnxruntime 1.31 multiplies matrices and adds up their elements, without an epilogue. This is slow for few
    filters in a group, and for overlapping windows. Measured at 1 thread with AVX-512.
    """
    x, weights = match.operands[:2]
    assert x is not None and weights is not None
    found: ConvTransposeParameters = match.parameters
    if ir.constant_of(weights) is None or cx.shape(match.results[0]) is None:
        return False  # computed weights may be infinite
    shape = ir.all_ints(cx.shape(weights) or ())
    assert shape is not None
    filters, points = shape[1], math.prod(typical_sizes(cx.shape(x))[2:])
    if points < _MIN_POINTS or math.prod(shape) > _MOST_WEIGHTS * found.groups:
        return False
    if found.groups > 1 or filters == 1 or max(found.strides) == 1 or len(shape) == 5:
        return True
    overlaps = any(size > step for size, step in zip(found.kernel, found.strides, strict=True))
    return filters >= _MIN_FILTERS and (overlaps or has_epilogue(match.nodes[0]))


@template("ConvTranspose", is_faster=is_faster)
def conv_transpose(anchor: ir.Node, cx: Context) -> Match:
    """A transposed convolution of known kernel size, with its bias."""
    inputs: list[ir.Value | None] = [*anchor.inputs, None, None][:3]
    operands = [value if value is not None and value.name else None for value in inputs]
    for value in operands:
        if value is not None and cx.dtype(value) is not ir.DataType.FLOAT:
            raise CantFuse("no kernels for transposed convolutions of other types than float")
        if value is not None and cx.shape(value) is None:
            raise CantFuse(f"the rank of {value.name!r} is unknown")
    x, weights, bias = operands
    if x is None or weights is None:
        raise CantFuse("an operand is missing")
    dims = require_static_shape(weights, cx)
    if len(dims) != cx.rank(x):
        raise CantFuse("the rank of its weights is wrong")
    if not 3 <= len(dims) <= 5 or 0 in dims:
        raise CantFuse("no kernels for transposed convolutions of other than 1 to 3 dimensions")
    if bias is not None and cx.rank(bias) != 1:
        raise CantFuse("the rank of its bias is wrong")
    tensor = ir.constant_of(weights)
    if tensor is not None and not np.isfinite(tensor.numpy()).all():
        raise CantFuse("its weights are not all finite: onnxruntime omits their products with padding")
    parameters = _parameters(anchor, dims)
    return Match("conv_transpose", (anchor,), tuple(operands), (anchor.outputs[0],), parameters)


def _parameters(node: ir.Node, shape: tuple[int, ...]) -> ConvTransposeParameters:
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    rank = len(shape) - 2
    mode = str(attributes.get("auto_pad", "NOTSET"))
    sizes = tuple(attributes.get("output_shape") or ())[-rank:]
    is_given = mode == "NOTSET" and not sizes
    pads = tuple(attributes.get("pads") or ()) if is_given else ()
    found = ConvTransposeParameters(
        int(attributes.get("group", 1)),
        shape[2:],
        tuple(attributes.get("strides") or (1,) * rank),
        tuple(attributes.get("dilations") or (1,) * rank),
        tuple(attributes.get("output_padding") or (0,) * rank),
        pads or (0,) * (2 * rank),
        "NOTSET" if mode == "VALID" else mode,
        sizes,
    )
    kernel = tuple(attributes.get("kernel_shape") or found.kernel)
    per_axis = (found.strides, found.dilations, found.output_padding, kernel, sizes or kernel)
    lengths = {len(values) for values in per_axis}
    if kernel != found.kernel or lengths != {rank} or len(found.pads) != 2 * rank:
        raise CantFuse("its attributes contradict the shape of its weights")
    if min(*found.strides, *found.dilations) < 1 or min(*found.output_padding, *found.pads) < 0:
        raise CantFuse("its strides, dilations or pads are negative")
    extents = [(size - 1) * step for size, step in zip(found.kernel, found.dilations, strict=True)]
    if max(*extents, *found.pads, *found.output_padding, *found.output_shape) > MOST_EXTENT:
        raise CantFuse("its dilations, pads or sizes are too large")
    if max(found.strides) > _MOST_STRIDE or math.prod(found.strides[:-1]) > _MOST_PHASES:
        raise CantFuse("its strides are too large")
    if min(found.output_shape, default=1) < 1:
        raise CantFuse("its output_shape is not positive")
    if found.auto_pad not in ("NOTSET", "SAME_UPPER", "SAME_LOWER"):
        raise CantFuse(f"auto_pad {found.auto_pad} is unknown")
    if found.groups < 1 or shape[0] % found.groups:
        raise CantFuse("its groups do not divide its channels")
    return found
