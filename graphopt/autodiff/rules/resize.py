"""Resize: a linear map along each axis, obtained by resizing the identity matrix."""

from __future__ import annotations

from dataclasses import field
from typing import Any

import numpy as np

from graphopt import ir
from graphopt.autodiff.building_blocks.crop_and_resize import cropped
from graphopt.autodiff.graph_builder import GraphBuilder, Size
from graphopt.autodiff.primal_node import PrimalNode
from graphopt.autodiff.reverse_mode import vjp_of_decomposition
from graphopt.autodiff.rule_registry import Cotangents, gradient
from graphopt.util.lazy_dataclass import dataclass

#: Attributes that apply to each axis separately.
_METHOD = (
    "antialias",
    "coordinate_transformation_mode",
    "cubic_coeff_a",
    "exclude_outside",
    "mode",
    "nearest_mode",
)
_CROPS = "tf_crop_and_resize"
#: Coordinate modes in which upsampling by an integer factor has periodic weights, mirrored at the ends.
_PERIODIC = ("half_pixel", "pytorch_half_pixel", "half_pixel_symmetric")
#: Number of input elements for which the pattern of an integer factor is checked.
_PERIODS = 64


@dataclass
class _Axis:
    """A resized axis.

    Attributes:
        axis: the axis of x.
        position: its index in the inputs ``scales``, ``sizes`` and ``roi``.
        scale: the scale factor; ``None`` if it is unknown.
    """

    axis: int
    position: int
    scale: float | None


@dataclass
class _Resizing:
    """The operands of a node.

    Attributes:
        count: the number of axes that its inputs describe.
        scales, sizes, roi: these inputs; one of the first two is present.
        axes: the axes that change.
    """

    count: int
    scales: ir.Value | None
    sizes: ir.Value | None
    roi: ir.Value | None
    axes: list[_Axis] = field(default_factory=list)


@gradient("Resize", since=11)
def resize(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """Aᵀ dy along each axis, with the matrix A of the interpolation; window sums for integer factors."""
    if node.attribute("mode") != "nearest" and node.needs_grad(2):
        raise node.refusal("the gradient by the scales is not supported")
    resizing = _operands(node)
    by_x = _by_x(op, node, dy, resizing) if node.needs_grad(0) else None
    crops = node.attribute("coordinate_transformation_mode") == _CROPS
    return by_x, _by_region(op, node, dy, resizing) if crops and node.needs_grad(1) else None


def _by_region(op: GraphBuilder, node: PrimalNode, dy: ir.Value, resizing: _Resizing) -> ir.Value | None:
    roi, mode = resizing.roi, node.attribute("mode")
    if roi is None or mode == "nearest" or not resizing.axes:
        return None
    if mode != "linear" or node.attribute("antialias", 0) or _keeps_ratio(node):
        raise node.refusal("the gradient by the region is supported only for linear interpolation")
    positions = [(axis.axis, axis.position) for axis in resizing.axes]
    found = vjp_of_decomposition(op, node, [dy], lambda: cropped(op, node, roi, positions, resizing.count))
    return found.get(roi)


def _by_x(op: GraphBuilder, node: PrimalNode, dy: ir.Value, resizing: _Resizing) -> ir.Value:
    if not resizing.axes:
        return dy
    factors = _whole_factors(resizing)
    if factors and _repeats(node, factors):
        return _window_sums(op, node, dy, factors)
    if factors and _doubles(node, factors) and op.version >= 18:
        return _shrunk(op, node, dy, factors)
    return _products(op, node, dy, resizing)


def _operands(node: PrimalNode) -> _Resizing:
    rank = node.rank(node.x)
    axes = node.attribute("axes") or range(rank)
    scales, sizes = node.optional(2), node.optional(3)
    if scales is not None and (sizes is not None or node.cx.static_shape(scales) == (0,)):
        scales = None
    resizing = _Resizing(len(axes), scales, sizes, node.optional(1))
    left_out = _left_out(node, rank)
    for position, axis in enumerate(axes):
        found = _Axis(axis % rank, position, _scale(node, resizing, axis % rank, position))
        if not (found.axis in left_out or (found.scale == 1 and not _cuts(node, resizing, position))):
            resizing.axes.append(found)
    if node.attribute("mode") != "nearest" and rank == 4:  # channels are second or last
        middle = [axis for axis in resizing.axes if axis.axis == 1]
        last = [axis for axis in resizing.axes if axis.axis == 3]
        if middle and last and last[0].scale not in (None, 1) and middle[0].scale in (None, 1):
            resizing.axes.remove(middle[0])
    return resizing


def _left_out(node: PrimalNode, rank: int) -> range:
    """The leading axes along which onnxruntime never interpolates."""
    if node.attribute("mode") == "nearest" or rank < 4:
        return range(0)
    return range(1) if rank == 4 else range(2)


def _scale(node: PrimalNode, resizing: _Resizing, axis: int, position: int) -> float | None:
    if resizing.scales is not None:
        scales = node.cx.constant(resizing.scales)
        return None if scales is None else float(scales[position])
    before, after = node.shape(node.x), node.shape(node.y)
    assert before is not None
    if _keeps_ratio(node) or after is None:
        return None
    old, new = before[axis], after[axis]
    if node.cx.facts.dim_equal(old, new):
        return 1.0
    if isinstance(old, int) and isinstance(new, int) and old:
        return float(np.float32(new) / np.float32(old))
    return None


def _keeps_ratio(node: PrimalNode) -> bool:
    """Whether the result along an axis depends on the sizes of all axes."""
    policy = node.attribute("keep_aspect_ratio_policy", "stretch")
    return policy != "stretch" and node.optional(3) is not None and len(node.attribute("axes") or (0, 0)) > 1


def _cuts(node: PrimalNode, resizing: _Resizing, position: int) -> bool:
    """Whether an axis that keeps its size may be cropped."""
    if node.attribute("coordinate_transformation_mode") != _CROPS:
        return False
    roi = node.cx.constant(resizing.roi)
    return roi is None or roi[position] != 0 or roi[resizing.count + position] != 1


# Integer factors ---------------------------------------------------------------------------


def _whole_factors(resizing: _Resizing) -> dict[int, int]:
    """The scale factor of each axis; empty unless all are integers."""
    factors = {axis.axis: axis.scale for axis in resizing.axes}
    if any(scale is None or not scale.is_integer() for scale in factors.values()):
        return {}
    return {axis: int(scale) for axis, scale in factors.items() if scale is not None}


def _repeats(node: PrimalNode, factors: dict[int, int]) -> bool:
    """Whether each element of x is repeated ``factors`` times along each axis."""
    if node.attribute("mode") != "nearest":
        return False
    coordinates, rounding = node.attribute("coordinate_transformation_mode"), node.attribute("nearest_mode")
    for factor in factors.values():
        position = np.arange(factor * _PERIODS, dtype=np.float32)
        if coordinates in _PERIODIC:
            origin = (position + np.float32(0.5)) / np.float32(factor) - np.float32(0.5)
        elif coordinates == "asymmetric":
            origin = position / np.float32(factor)
        else:
            return False
        nearest = {
            "round_prefer_floor": np.ceil(origin - np.float32(0.5)),
            "round_prefer_ceil": np.floor(origin + np.float32(0.5)),
            "floor": np.floor(origin),
            "ceil": np.ceil(origin),
        }[rounding]
        if not np.array_equal(np.clip(nearest, 0, _PERIODS - 1), position // factor):
            return False
    return True


def _window_sums(op: GraphBuilder, node: PrimalNode, dy: ir.Value, factors: dict[int, int]) -> ir.Value:
    sizes: list[Size] = []
    summed = []
    for axis in range(node.rank(node.x)):
        sizes.append(op.dim(node.x, axis))
        if axis in factors:
            summed.append(len(sizes))
            sizes.append(factors[axis])
    return op.ReduceSum(op.reshape(dy, op.shape(*sizes)), summed, keepdims=0)


def _doubles(node: PrimalNode, factors: dict[int, int]) -> bool:
    """Whether this is linear upsampling by 2 with periodic weights."""
    return (
        node.attribute("mode") == "linear"
        and not node.attribute("antialias", 0)
        and node.attribute("coordinate_transformation_mode") in _PERIODIC
        and set(factors.values()) == {2}
    )


def _shrunk(op: GraphBuilder, node: PrimalNode, dy: ir.Value, factors: dict[int, int]) -> ir.Value:
    """Sums of dy with weights 1/4, 3/4, 3/4 and 1/4: an antialiased Resize, times 2 for each axis.

    Both operations treat elements outside of the tensor as copies of its edge elements.
    """
    means = op.Resize(dy, None, None, op.shape_of(node.x), mode="linear", antialias=1)
    return op.Mul(means, 2.0 ** len(factors))


# Any factors -------------------------------------------------------------------------------


def _products(op: GraphBuilder, node: PrimalNode, dy: ir.Value, resizing: _Resizing) -> ir.Value:
    rank = node.rank(node.x)
    merged = False
    for axis in sorted(resizing.axes, key=lambda axis: -axis.axis):
        if axis.axis == rank - 1:
            dy = op.MatMul(dy, _matrix(op, node, resizing, axis, transposed=False))
            continue
        if axis.axis < rank - 2 or merged:
            trailing = [op.dim(node.x, later) for later in range(axis.axis + 1, rank)]
            dims = [op.dim(node.y, before) for before in range(axis.axis + 1)]
            dy = op.reshape(dy, op.shape(*dims, op.product(*trailing)))
            merged = True
        dy = op.MatMul(_matrix(op, node, resizing, axis, transposed=True), dy)
    return op.reshape(dy, op.shape_of(node.x)) if merged else dy


def _matrix(
    op: GraphBuilder, node: PrimalNode, resizing: _Resizing, axis: _Axis, *, transposed: bool
) -> ir.Value:
    """The interpolation matrix of an axis, [size in y, size in x], or its transpose."""
    before = op.dim(node.x, axis.axis)
    unit = op.identity_matrix(before, node.x)
    method = {name: node.attribute(name) for name in _METHOD if name in node.raw.attributes}
    if _keeps_ratio(node):
        matrix = _with_all_axes(op, node, resizing, axis, unit, method)
        return matrix if transposed else op.Transpose(matrix)

    def placed(own: Any, other: Any) -> ir.Value:
        return op.Concat(other, own, axis=0) if transposed else op.Concat(own, other, axis=0)

    roi = None
    if resizing.roi is not None and node.attribute("coordinate_transformation_mode") == _CROPS:
        type_ = op.dtype(resizing.roi).numpy()
        zero, one = op.constant(np.zeros(1, type_)), op.constant(np.ones(1, type_))
        start = op.Gather(resizing.roi, [axis.position])
        end = op.Gather(resizing.roi, [resizing.count + axis.position])
        roi = op.Concat(placed(start, zero), placed(end, one), axis=0)
    if resizing.scales is None:
        after = op.dim(node.y, axis.axis)
        sizes = op.shape(before, after) if transposed else op.shape(after, before)
        return op.Resize(unit, roi, None, sizes, **method)
    one = op.constant(np.ones(1, np.float32))
    if axis.scale is not None:
        own = op.constant(np.array([axis.scale], np.float32))
    else:
        own = op.Gather(resizing.scales, [axis.position])
    return op.Resize(unit, roi, placed(own, one), **method)


def _with_all_axes(
    op: GraphBuilder,
    node: PrimalNode,
    resizing: _Resizing,
    axis: _Axis,
    unit: ir.Value,
    method: dict[str, Any],
) -> ir.Value:
    """The transposed matrix if it depends on all sizes: all axes are resized, and one axis is read."""
    if node.attribute("coordinate_transformation_mode") == _CROPS:
        raise node.refusal("the region is not defined for sizes that keep their ratio")
    rank = node.rank(node.x)
    axes = [given % rank for given in node.attribute("axes") or range(rank)]
    before = op.dim(node.x, axis.axis)
    mine = axis.position + 2
    last = 1 + len(axes)
    others = [index for index in range(2, last + 1) if index != mine]
    spread = op.Expand(
        op.Unsqueeze(unit, [0, *others]), op.shape(1, before, *(op.dim(node.x, each) for each in axes))
    )
    policy = node.attribute("keep_aspect_ratio_policy")
    whole = op.Resize(
        spread,
        None,
        None,
        resizing.sizes,
        axes=list(range(2, last + 1)),
        keep_aspect_ratio_policy=policy,
        **method,
    )
    one = op.Slice(whole, [0] * len(others), [1] * len(others), others)
    return op.Squeeze(one, [0, *others])
