"""BatchNormalization, with running statistics or, in training mode, batch statistics.

The gradient recomputes the batch statistics, because onnxruntime does not return them.
"""

from __future__ import annotations

import numpy as np

from graphopt import ir
from graphopt.autodiff.graph_builder import GraphBuilder
from graphopt.autodiff.primal_node import PrimalNode
from graphopt.autodiff.rule_registry import Cotangents, gradient
from graphopt.autodiff.rules.normalization import deviations, wide

_Maybe = ir.Value | None


@gradient("BatchNormalization")
def batch_normalization(op: GraphBuilder, node: PrimalNode, dy: _Maybe, *running: _Maybe) -> Cotangents:
    """scale dy / σ; Σ x̂ dy; Σ dy; in training mode, dx = scale (dy - mean dy - x̂ mean(x̂ dy)) / σ."""
    batch = _Batch(op, node)
    if node.attribute("training_mode", 0):
        found = _in_training(batch, dy, *running)
    elif dy is not None and not any(output.name for output in node.outputs[1:]):
        found = _by_given_statistics(batch, dy)
    else:
        raise node.refusal("it updates running statistics, which is well defined only since opset 14")
    return [
        None if dx is None or x is None else op.cast_like(dx, x)
        for x, dx in zip(node.inputs, found, strict=True)
    ]


class _Batch:
    """The operands, in float32 or float64; the channel axis is 1."""

    def __init__(self, op: GraphBuilder, node: PrimalNode) -> None:
        self.op = op
        self.node = node
        self.rank = node.rank(node.x)
        self.dtype = wide(op, node.x)
        self.x, self.scale, _, self.mean, self.variance = (self.wide(node.input(i)) for i in range(5))
        self.epsilon = node.number("epsilon", 1e-5)
        #: All axes except the channel axis; there is one channel if x has a single axis.
        self.reduced = [axis for axis in range(self.rank) if axis != 1]

    def wide(self, value: ir.Value) -> ir.Value:
        """``value`` in the type of computation."""
        return self.op.cast(value, self.dtype)

    def along(self, value: ir.Value) -> ir.Value:
        """``value`` [C], with trailing axes of size 1 so that it broadcasts against x."""
        return self.op.Unsqueeze(value, list(range(1, self.rank - 1))) if self.rank > 2 else value

    def total(self, value: ir.Value) -> ir.Value:
        """The sum of ``value`` over each channel."""
        return self.op.ReduceSum(value, self.reduced, keepdims=int(self.rank == 1))

    def count(self) -> ir.Value:
        """The number of elements of a channel, a scalar."""
        op = self.op
        shape = self.node.cx.static_shape(self.x)
        if shape is not None:
            return op.number(float(np.prod([shape[axis] for axis in self.reduced])), self.x)
        return op.cast_like(op.Div(op.Size(self.x), op.Size(self.scale)), self.x)


def _by_given_statistics(batch: _Batch, dy: ir.Value) -> list[_Maybe]:
    op, dy = batch.op, batch.wide(dy)
    inverse = op.Reciprocal(op.Sqrt(op.Add(batch.variance, batch.epsilon)))
    factor = op.Mul(batch.scale, inverse)
    deviation = op.Sub(batch.x, batch.along(batch.mean))
    dscale = op.Mul(batch.total(op.Mul(dy, deviation)), inverse)
    dbias = batch.total(dy)
    dmean = op.Neg(op.Mul(factor, dbias))
    dvariance = op.Mul(op.Mul(op.Mul(dscale, factor), inverse), -0.5)
    return [op.Mul(dy, batch.along(factor)), dscale, dbias, dmean, dvariance]


def _in_training(
    batch: _Batch, dy: _Maybe, drunning_mean: _Maybe = None, drunning_variance: _Maybe = None
) -> list[_Maybe]:
    op, node = batch.op, batch.node
    for index in (1, 2):  # onnxruntime requires all outputs
        node.output(index)
    momentum = node.number("momentum", 0.9)
    deviation, inverse = deviations(op, batch.x, batch.reduced, batch.epsilon)
    dx = dscale = dbias = dmean = dvariance = None
    if dy is not None:
        dy = batch.wide(dy)
        hat = op.Mul(deviation, inverse)
        product = op.Mul(dy, hat)
        dscale, dbias = batch.total(product), batch.total(dy)
        left = op.Sub(dy, op.Mul(hat, op.mean(product, batch.reduced)))
        left = op.Sub(left, op.mean(dy, batch.reduced))
        dx = op.Mul(left, op.Mul(batch.along(batch.scale), inverse))
    if drunning_mean is not None:
        drunning_mean = batch.wide(drunning_mean)
        dmean = op.Mul(drunning_mean, momentum)
        part = batch.along(op.Div(op.Mul(drunning_mean, 1 - momentum), batch.count()))
        dx = op.expand_like(part, batch.x) if dx is None else op.Add(dx, part)
    if drunning_variance is not None:
        drunning_variance = batch.wide(drunning_variance)
        dvariance = op.Mul(drunning_variance, momentum)
        part = batch.along(op.Div(op.Mul(drunning_variance, 2 * (1 - momentum)), batch.count()))
        part = op.Mul(deviation, part)
        dx = part if dx is None else op.Add(dx, part)
    return [dx, dscale, dbias, dmean, dvariance]
