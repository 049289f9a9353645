"""Resize and Upsample."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphopt.analysis.shape_inference.node_facts import NodeFacts, normalize_axis, shape_rule
from graphopt.analysis.shape_inference.value_facts import Fact
from graphopt.analysis.symbolic import Dim, floordiv

_EXACT_DENOMINATOR = 64  # d * scale is exact in float32 for such scales and any realistic d


@shape_rule("Upsample")
def upsample(node: NodeFacts) -> Fact:
    """Scales are an attribute before opset 9, and an input from opset 9 on."""
    shape = node.shape(0)
    if shape is None:
        return Fact(node.dtype(0))
    if node.version < 9:
        return Fact(node.dtype(0), _scaled(node, shape, node.attr_floats("scales")))
    return Fact(node.dtype(0), _scaled(node, shape, _constant_floats(node, 1)))


@shape_rule("Resize")
def resize(node: NodeFacts) -> Fact:
    """floor(d * scale), or the given sizes."""
    shape, dtype = node.shape(0), node.dtype(0)
    if shape is None:
        return Fact(dtype)
    if node.version < 11:
        return Fact(dtype, _scaled(node, shape, _constant_floats(node, 1)))
    axes = [normalize_axis(axis, len(shape)) for axis in node.attr_ints("axes") or range(len(shape))]
    new: Sequence[Dim] | None
    if node.has(3) and node.shape(3) != (0,):
        new = node.named_contents(3)
        if node.attr_str("keep_aspect_ratio_policy", "stretch") != "stretch":
            new = None
    elif node.attr_str("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize":
        new = None  # the specification crops before it scales, onnxruntime does not
    else:
        new = _scaled(node, [shape[axis] for axis in axes], _constant_floats(node, 2))
    dims = list(shape)
    for index, axis in enumerate(axes):
        dims[axis] = node.fresh() if new is None else new[index]
    return Fact(dtype, tuple(dims))


def _constant_floats(node: NodeFacts, index: int) -> tuple[float, ...] | None:
    array = node.constant_array(index)
    return None if array is None else tuple(array.reshape(-1).tolist())


def _scaled(node: NodeFacts, dims: Sequence[Dim], scales: Sequence[float] | None) -> tuple[Dim, ...]:
    if not scales:
        return tuple(node.fresh() for _ in dims)
    return tuple(_scale(node, dim, scale) for dim, scale in zip(dims, scales, strict=True))


def _scale(node: NodeFacts, dim: Dim, scale: float) -> Dim:
    """floor(dim * scale) in float32, as onnxruntime computes it."""
    if isinstance(dim, int):
        return int(np.float32(dim) * np.float32(scale))
    numerator, denominator = scale.as_integer_ratio()
    if denominator > _EXACT_DENOMINATOR or numerator > denominator << 16:
        return node.fresh()
    return floordiv(dim * numerator, denominator)
