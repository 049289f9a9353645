"""The standard's losses: negative log likelihood, with or without log-softmax."""

from __future__ import annotations

from graphopt import ir
from graphopt.autodiff.building_blocks.scatter import one_hot
from graphopt.autodiff.graph_builder import GraphBuilder
from graphopt.autodiff.primal_node import PrimalNode
from graphopt.autodiff.rule_registry import Cotangents, gradient
from graphopt.util.lazy_dataclass import dataclass


@gradient("SoftmaxCrossEntropyLoss")
def softmax_cross_entropy(
    op: GraphBuilder, node: PrimalNode, dy: ir.Value | None, dlog: ir.Value | None = None
) -> Cotangents:
    """(softmax(x) - onehot) w dy, over Σ w for the mean; dp - softmax(x) Σ dp for log probabilities."""
    log = node.output(1)
    soft = op.Exp(log)
    dx = dw = None
    if dy is not None:
        labels = _Labels.of(op, node)
        dx = op.Mul(op.Sub(soft, labels.bits), labels.share(dy))
        dw = labels.by_weight(dy, log)
    if dlog is not None:
        dlogits = op.Sub(dlog, op.Mul(soft, op.ReduceSum(dlog, [1], keepdims=1)))
        dx = dlogits if dx is None else op.Add(dx, dlogits)
    return dx, None, dw


@gradient("NegativeLogLikelihoodLoss")
def negative_log_likelihood(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """-onehot w dy, over Σ w for the mean."""
    labels = _Labels.of(op, node)
    dx = op.Neg(op.Mul(labels.bits, labels.share(dy)))
    return dx, None, labels.by_weight(dy, node.x)


@dataclass
class _Labels:
    """Labels of scores [N, C, …], in the element type of the scores.

    Attributes:
        bits: [N, C, …], 1 at the class of the label and 0 elsewhere.
        counted: [N, 1, …], 0 for ignored labels and 1 for others; ``None`` without ignored labels.
        weight: [N, 1, …], the weight of each position; ``None`` for 1.
    """

    op: GraphBuilder
    node: PrimalNode
    bits: ir.Value
    counted: ir.Value | None
    weight: ir.Value | None

    @classmethod
    def of(cls, op: GraphBuilder, node: PrimalNode) -> _Labels:
        x, weights = node.x, node.optional(2)
        labels = op.cast(node.input(1), ir.DataType.INT64)
        bits = one_hot(op, labels, op.dim(x, 1), x, axis=1)
        ignored = node.attribute("ignore_index")
        counted = None
        if ignored is not None:
            counts = op.Not(op.Equal(labels, ignored))
            counted = op.Unsqueeze(op.cast_like(counts, x), [1])
        weight = counted
        if weights is not None:
            each = op.reshape(weights, op.shape(1, -1, *[1] * (node.rank(x) - 2)))
            weight = op.ReduceSum(op.Mul(bits, each), [1], keepdims=1)
            weight = weight if counted is None else op.Mul(weight, counted)
        return cls(op, node, bits, counted, weight)

    def share(self, dy: ir.Value) -> ir.Value:
        """The cotangent of the loss at each position times its weight; it broadcasts against the scores."""
        op, reduction = self.op, self.node.attribute("reduction", "mean")
        if reduction == "none":
            dy = op.Unsqueeze(dy, [1])
        elif reduction == "mean":
            dy = op.Div(dy, self._total(dy))
        return dy if self.weight is None else op.Mul(self.weight, dy)

    def _total(self, like: ir.Value) -> ir.Value:
        """The sum of the weights of all positions."""
        if self.weight is not None:
            return self.op.ReduceSum(self.weight, keepdims=0)
        return self.op.cast_like(self.op.Size(self.node.input(1)), like)

    def by_weight(self, dy: ir.Value, log: ir.Value) -> ir.Value | None:
        """The gradient [C] of the class weights."""
        op, reduction = self.op, self.node.attribute("reduction", "mean")
        if not self.node.needs_grad(2):
            return None
        loss = op.Neg(op.ReduceSum(op.Mul(self.bits, log), [1], keepdims=1))
        if reduction == "mean":
            share = op.Div(op.Mul(op.Sub(loss, self.node.y), dy), self._total(dy))
        else:
            share = op.Mul(loss, op.Unsqueeze(dy, [1]) if reduction == "none" else dy)
        share = share if self.counted is None else op.Mul(share, self.counted)
        axes = [axis for axis in range(self.node.rank(self.node.x)) if axis != 1]
        return op.ReduceSum(op.Mul(self.bits, share), axes, keepdims=0)
