"""Normalization by a norm, a deviation, or the sum of squares of neighbours."""

from __future__ import annotations

import numpy as np

from graphopt import ir
from graphopt.autodiff.graph_builder import GraphBuilder
from graphopt.autodiff.primal_node import PrimalNode
from graphopt.autodiff.rule_registry import Cotangents, gradient

#: Added to the standard deviation, as the standard defines MeanVarianceNormalization.
_EPSILON = 1e-9


@gradient("LpNormalization")
def lp_normalization(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """(dy - y Σ y dy) / |x| for p = 2, (dy - sign(x) Σ y dy) / |x| for p = 1; 0 where x = 0."""
    x, y, axes = node.x, node.y, [node.attribute("axis", -1)]
    along = op.ReduceSum(op.Mul(y, dy), axes, keepdims=1)
    if node.attribute("p", 2) == 1:
        norm, slope = op.ReduceSum(op.Abs(x), axes, keepdims=1), op.Sign(x)
    else:
        norm, slope = op.ReduceSum(op.Mul(x, y), axes, keepdims=1), y
    norm = op.Where(op.Equal(norm, 0.0), op.number(np.inf, norm), norm)
    return op.Div(op.Sub(dy, op.Mul(slope, along)), norm)


@gradient("MeanVarianceNormalization")
def mean_variance_normalization(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """(dy - mean dy - y mean(y dy)) / σ."""
    x, y, axes = node.x, node.y, list(node.attribute("axes", (0, 2, 3)))
    centred = op.Sub(x, op.mean(x, axes))
    deviation = op.Add(op.Sqrt(op.mean(op.Mul(centred, centred), axes)), _EPSILON)
    along = op.Mul(y, op.mean(op.Mul(y, dy), axes))
    return op.Div(op.Sub(op.Sub(dy, op.mean(dy, axes)), along), deviation)


@gradient("LRN")
def lrn(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """dy / D^β - 2 α β / size x Sᵀ(dy y / D), where D = bias + α / size S(x²) and S sums over channels."""
    x, y, size = node.x, node.y, int(node.attribute("size"))
    alpha, beta, bias = (float(node.attribute(name)) for name in ("alpha", "beta", "bias"))
    before = (size - 1) // 2
    after = size - 1 - before
    # sums over neighbouring channels as average pools of single-channel images
    shape = op.shape(op.dim(x, 0), 1, op.dim(x, 1), -1)

    def means(value: ir.Value, *pads: int) -> ir.Value:
        flat = op.Reshape(value, shape)
        first, last = pads
        around = [first, 0, last, 0]
        pooled = op.AveragePool(flat, kernel_shape=[size, 1], pads=around, count_include_pad=1)
        return op.reshape_like(pooled, x)

    base = op.Add(op.Mul(means(op.Mul(x, x), before, after), alpha), bias)
    own = op.Div(dy, op.Pow(base, beta))
    back = means(op.Div(op.Mul(dy, y), base), after, before)
    return op.Sub(own, op.Mul(op.Mul(x, back), 2.0 * alpha * beta))
