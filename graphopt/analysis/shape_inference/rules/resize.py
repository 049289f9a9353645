"""Resize and Upsample."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphopt.analysis.shape_inference.facts import Fact
from graphopt.analysis.shape_inference.node import NodeFacts, normalize_axis, shape_rule
from graphopt.analysis.symbolic import Dim, floordiv

_EXACT_DENOMINATOR = 64  # d * scale is exact in float32 for such scales and any sensible d


@shape_rule("Upsample")
def upsample(given: NodeFacts) -> Fact:
    """Scales are an attribute before opset 9, an input since."""
    shape = given.shape(0)
    if shape is None:
        return Fact(given.dtype(0))
    if given.version < 9:
        return Fact(given.dtype(0), _scaled(given, shape, given.attr_floats("scales")))
    return Fact(given.dtype(0), _scaled(given, shape, _constant_floats(given, 1)))


@shape_rule("Resize")
def resize(given: NodeFacts) -> Fact:
    """floor(d * scale), or the sizes as given."""
    shape, dtype = given.shape(0), given.dtype(0)
    if shape is None:
        return Fact(dtype)
    if given.version < 11:
        return Fact(dtype, _scaled(given, shape, _constant_floats(given, 1)))
    axes = [normalize_axis(axis, len(shape)) for axis in given.attr_ints("axes") or range(len(shape))]
    new: Sequence[Dim] | None
    if given.has(3) and given.shape(3) != (0,):
        new = given.named_contents(3)
        if given.attr_str("keep_aspect_ratio_policy", "stretch") != "stretch":
            new = None
    elif given.attr_str("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize":
        new = None  # the specification crops before it scales, onnxruntime does not
    else:
        new = _scaled(given, [shape[axis] for axis in axes], _constant_floats(given, 2))
    dims = list(shape)
    for index, axis in enumerate(axes):
        dims[axis] = given.fresh() if new is None else new[index]
    return Fact(dtype, tuple(dims))


def _constant_floats(given: NodeFacts, index: int) -> tuple[float, ...] | None:
    array = given.constant_array(index)
    return None if array is None else tuple(array.reshape(-1).tolist())


def _scaled(given: NodeFacts, dims: Sequence[Dim], scales: Sequence[float] | None) -> tuple[Dim, ...]:
    if not scales:
        return tuple(given.fresh() for _ in dims)
    return tuple(_scale(given, dim, scale) for dim, scale in zip(dims, scales, strict=True))


def _scale(given: NodeFacts, dim: Dim, scale: float) -> Dim:
    """floor(dim * scale) in float32, as onnxruntime computes it."""
    if isinstance(dim, int):
        return int(np.float32(dim) * np.float32(scale))
    numerator, denominator = scale.as_integer_ratio()
    if denominator > _EXACT_DENOMINATOR or numerator > denominator << 16:
        return given.fresh()
    return floordiv(dim * numerator, denominator)
