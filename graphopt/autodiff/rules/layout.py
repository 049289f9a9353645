"""Operators that move elements: reshapes, permutations, copies, slices and joins."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphopt import ir
from graphopt.autodiff.building_blocks.scatter import scatter_moved
from graphopt.autodiff.graph_builder import GraphBuilder
from graphopt.autodiff.primal_node import PrimalNode
from graphopt.autodiff.rule_registry import Cotangents, gradient, non_differentiable

#: The end of a Slice with negative steps that includes index 0 of any axis.
_FIRST = -np.iinfo(np.int32).max

shapes = non_differentiable("Shape", "Size", reason="it depends only on shapes", quiet=True)
fills = non_differentiable("ConstantOfShape", "EyeLike", reason="it depends only on shapes", quiet=True)


@gradient("Reshape", "Flatten", "com.microsoft::ExpandDims")
def reshape(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """dy reshaped to the shape of x."""
    return op.reshape_like(dy, node.x)


@gradient("Squeeze")
def squeeze(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """dy reshaped to the shape of x."""
    axes = node.ints(1)  # omitted or empty axes squeeze all axes of size 1
    return op.Unsqueeze(dy, list(axes)) if axes else op.reshape_like(dy, node.x)


@gradient("Unsqueeze")
def unsqueeze(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """Squeeze(dy, axes)."""
    return op.Squeeze(dy, node.input(1))


@gradient("Transpose")
def transpose(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """Transpose(dy, perm⁻¹)."""
    perm = node.attribute("perm")
    return op.Transpose(dy) if perm is None else op.Transpose(dy, perm=[int(i) for i in np.argsort(perm)])


@gradient("Expand", broadcasts=True)
def expand(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """dy summed over the broadcast axes."""
    return dy


@gradient("Tile")
def tile(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """dy reshaped to axes of repeats, and summed over these."""
    x, repeats = node.x, node.ints(1)
    rank = node.rank(x)
    sizes = [op.dim(x, axis) for axis in range(rank)]
    if repeats is not None and all(isinstance(size, int) for size in sizes):
        dims: Any = [size for pair in zip(repeats, sizes, strict=True) for size in pair]
    else:
        pairs = op.Concat(op.Unsqueeze(node.input(1), [1]), op.Unsqueeze(op.shape_of(x), [1]), axis=1)
        dims = op.Reshape(pairs, [-1])
    return op.ReduceSum(op.reshape(dy, dims), list(range(0, 2 * rank, 2)), keepdims=0)


@gradient("Concat")
def concat(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """Split(dy)."""
    operands = [node.input(index) for index in range(len(node.inputs))]
    axis = node.attribute("axis")
    if len(operands) == 1:
        return dy
    if axis < 0:
        axis += node.rank(node.y)
    sizes = op.shape(*(op.dim(x, axis) for x in operands))
    return op.Split(dy, sizes, axis=axis, outputs=len(operands))


@gradient("Split")
def split(op: GraphBuilder, node: PrimalNode, *cotangents: ir.Value | None) -> Cotangents:
    """Concat(dy…), with zeros for outputs without a gradient."""
    parts = [
        op.zeros_like(part) if dy is None else dy for part, dy in zip(node.outputs, cotangents, strict=True)
    ]
    return op.Concat(*parts, axis=node.attribute("axis", 0))


@gradient("Slice")
def slice_(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """dy at the selected positions, otherwise 0."""
    starts, ends, axes = node.ints(1), node.ints(2), node.ints(3)
    steps = node.ints(4) if node.optional(4) is not None else (1,) * len(starts or ())
    known_axes = axes is not None or node.optional(3) is None
    rank = node.cx.rank(node.x)
    if starts and ends and steps and {*starts, *steps} == {-1} and max(ends) <= _FIRST:
        return op.node("Slice", [dy, *node.inputs[1:]])  # reverses whole axes
    dense = steps is not None and all(step == 1 for step in steps)
    if starts is None or ends is None or not known_axes or rank is None or not dense:
        return scatter_moved(op, node, dy, node.inputs[1:], {}, add=False)
    first = [0] * rank
    for axis, start in zip(axes if axes is not None else range(len(starts)), starts, strict=True):
        first[axis] = start
    return op.Pad(dy, _margins(op, node, dy, first))


def _margins(op: GraphBuilder, node: PrimalNode, dy: ir.Value, first: list[int]) -> ir.Value:
    """The number of elements that a Slice from ``first``, in steps of 1, omits at both ends of each axis."""
    shape, left = node.cx.static_shape(node.x), node.cx.static_shape(node.y)
    if shape is not None and left is not None:
        before = [
            min(max(start + size if start < 0 else start, 0), size)
            for start, size in zip(first, shape, strict=True)
        ]
        after = [size - begin - kept for size, begin, kept in zip(shape, before, left, strict=True)]
        return op.constant(np.array([*before, *after], np.int64))
    # negative starts count from the end; all are clamped to the axis
    size = op.shape_of(node.x)
    least = np.iinfo(np.int64).min // 2
    begin: Any = op.constant(np.array([max(start, least) for start in first], np.int64))
    if any(start < 0 for start in first):
        from_end = op.constant(np.array([start < 0 for start in first]))
        begin = op.Max(op.Where(from_end, op.Add(begin, size), begin), 0)
    if any(first):
        begin = op.Min(begin, size)
    after_ = op.Sub(op.Sub(size, op.shape_of(dy)), begin)
    return op.Concat(begin, after_, axis=0)


@gradient("Pad")
def pad(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """dy without the pads; in modes other than constant, pads are scatter-added to their sources."""
    mode, pads = node.attribute("mode", "constant"), node.input(1)
    rest = [pads, None, *node.inputs[3:]]
    while rest[-1] is None:
        rest.pop()
    if mode != "constant":
        return scatter_moved(op, node, dy, rest, {"mode": mode}, add=True)
    known = node.ints(1)
    rest[0] = op.Neg(pads) if known is None else op.constant(np.array([-n for n in known], np.int64))
    dx = op.Pad(dy, *rest)
    if not node.needs_grad(2):
        return dx
    margins = op.Sub(op.ReduceSum(dy, keepdims=0), op.ReduceSum(dx, keepdims=0))
    return dx, None, op.reshape_like(margins, node.input(2))


@gradient("DepthToSpace")
def depth_to_space(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """SpaceToDepth(dy), with the channel order of the mode."""
    block = node.attribute("blocksize")
    if node.attribute("mode", "DCR") == "DCR":
        return op.SpaceToDepth(dy, blocksize=block)
    x = node.x
    split = op.shape(op.dim(x, 0), -1, op.dim(x, 2), block, op.dim(x, 3), block)
    moved = op.Transpose(op.Reshape(dy, split), perm=[0, 1, 3, 5, 2, 4])
    return op.reshape(moved, op.shape_of(x))


@gradient("SpaceToDepth")
def space_to_depth(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """DepthToSpace(dy), with the channel order of the mode."""
    return op.DepthToSpace(dy, blocksize=node.attribute("blocksize"), mode=node.attribute("mode", "DCR"))
