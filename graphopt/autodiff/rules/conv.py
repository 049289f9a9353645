"""Conv, ConvTranspose and Col2Im."""

from __future__ import annotations

import math

import numpy as np

from graphopt import ir
from graphopt.autodiff.building_blocks.convolution import Moves, rank_of
from graphopt.autodiff.graph_builder import GraphBuilder
from graphopt.autodiff.primal_node import PrimalNode
from graphopt.autodiff.rule_registry import Cotangents, gradient


@gradient("Conv")
def conv(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """dx: ConvTranspose of dy; dW: correlation of x and dy; dB: Σ dy."""
    moves = Moves.of_conv(op, node, dy)
    dx = moves.scatter(dy, node.x) if node.needs_grad(0) else None
    dw = moves.correlate(node.x, dy) if node.needs_grad(1) else None
    return dx, dw, _by_bias(op, node, dy)


@gradient("ConvTranspose")
def conv_transpose(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """dx: Conv of dy; dW: correlation of dy and x; dB: Σ dy."""
    moves = Moves.of_conv_transpose(op, node)
    dx = moves.gather(dy, node.x) if node.needs_grad(0) else None
    dw = moves.correlate(dy, node.x) if node.needs_grad(1) else None
    return dx, dw, _by_bias(op, node, dy)


def _by_bias(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> ir.Value | None:
    if not node.needs_grad(2):
        return None
    return op.ReduceSum(dy, [0, *range(2, rank_of(node))], keepdims=0)


@gradient("Col2Im")
def col2im(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """The columns of dy, by a Conv with a one-hot kernel for each position of the block."""
    block, rank = node.ints(2), node.rank(node.y)
    moves = {name: node.attribute(name) for name in ("dilations", "pads", "strides")}
    if block is None:
        count = op.ReduceProd(node.input(2), keepdims=1)
        identity = op.EyeLike(op.ConstantOfShape(op.Concat(count, count, axis=0)), dtype=op.dtype(dy))
        kernels = op.Reshape(identity, op.Concat([-1, 1], node.input(2), axis=0))
    else:
        positions = math.prod(block)
        eye = np.eye(positions).reshape(positions, 1, *block)
        kernels = op.constant(eye.astype(op.dtype(dy).numpy()))
    planes = op.reshape(dy, op.shape(-1, 1, *(op.dim(dy, axis) for axis in range(2, rank))))
    return op.reshape_like(op.Conv(planes, kernels, **moves), node.x)
