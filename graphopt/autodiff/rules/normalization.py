"""Normalization of single samples: over the last axes, by instance, and by group.

All of them scale and shift x̂ = (x - mean) / σ. The gradient of x is dx̂ without its components along 1 and
x̂, divided by σ. onnxruntime's optimizer and graphopt write the operators of onnxruntime's domain.
"""

from __future__ import annotations

import numpy as np

from graphopt import ir
from graphopt.autodiff.graph_builder import GraphBuilder
from graphopt.autodiff.primal_node import PrimalNode
from graphopt.autodiff.reverse_mode import decomposition
from graphopt.autodiff.rule_registry import Cotangents, gradient

_Maybe = ir.Value | None


class _Norm:
    """x̂ and the gradient through it, in float32 or float64.

    Args:
        x: the normalized value.
        axes: the normalized axes, counted from the end.
        centered: whether the mean is subtracted.
        given: the mean (``None`` if it is not subtracted) and 1/σ, if they are outputs of the node.
        epsilon: default of the attribute ``epsilon``, which is added to the variance.
    """

    def __init__(
        self,
        op: GraphBuilder,
        node: PrimalNode,
        x: ir.Value,
        axes: list[int],
        *,
        centered: bool = True,
        given: tuple[_Maybe, ir.Value] | None = None,
        epsilon: float = 1e-5,
    ) -> None:
        self.op = op
        self.node = node
        self.axes = axes
        self.centered = centered
        self.dtype = wide(op, x)
        self.x = op.cast(x, self.dtype)
        eps = node.number("epsilon", epsilon)
        if given is not None:
            mean, inverse = given
            deviation = self.x if mean is None else op.Sub(self.x, self.wide(mean))
            self.inverse = self.wide(inverse)
            self.hat = op.Mul(deviation, self.inverse)
        elif centered and self.dtype == ir.DataType.FLOAT and op.version >= 17:
            one = op.constant(np.ones(1, np.float32))
            found = op.LayerNormalization(self.x, one, axis=axes[0], epsilon=eps, outputs=3)
            self.hat, _, self.inverse = found
        else:
            deviation, self.inverse = deviations(op, self.x, axes, eps, centered=centered)
            self.hat = op.Mul(deviation, self.inverse)

    def wide(self, value: ir.Value) -> ir.Value:
        """``value`` in the type of computation."""
        return self.op.cast(value, self.dtype)

    def narrow(self, value: _Maybe) -> _Maybe:
        """``value`` in the type of the node's first input."""
        return None if value is None else self.op.cast_like(value, self.node.x)

    def back(self, dhat: ir.Value) -> ir.Value:
        """The cotangent of x, given the cotangent of x̂."""
        op = self.op
        left = op.Sub(dhat, op.Mul(self.hat, op.mean(op.Mul(dhat, self.hat), self.axes)))
        if self.centered:
            left = op.Sub(left, op.mean(dhat, self.axes))
        return op.Mul(left, self.inverse)

    def scaled(self, dy: _Maybe, scale: ir.Value, bias: _Maybe) -> tuple[_Maybe, _Maybe, _Maybe]:
        """The gradients of x, scale and bias, for a scale and a bias that broadcast to x̂."""
        if dy is None:
            return None, None, None
        op, dy = self.op, self.wide(dy)
        dx = self.back(op.Mul(dy, self.wide(scale)))
        dscale = op.reduce_to(op.Mul(dy, self.hat), scale, self.x)
        dbias = None if bias is None else op.cast_like(op.reduce_to(dy, bias, self.x), bias)
        return dx, op.cast_like(dscale, scale), dbias

    def with_statistics(self, dx: _Maybe, dmean: _Maybe, dinverse: _Maybe) -> _Maybe:
        """``dx`` plus the gradient of x through the outputs mean and 1/σ."""
        op = self.op
        if dinverse is not None:  # the derivative of (var + epsilon)^-½ by x is -x̂/σ²n
            square = op.Mul(self.inverse, self.inverse)
            part = op.Neg(op.Mul(self.hat, self._share(op.Mul(self.wide(dinverse), square))))
            dx = part if dx is None else op.Add(dx, part)
        if dmean is not None:
            part = self._share(self.wide(dmean))
            dx = op.expand_like(part, self.x) if dx is None else op.Add(dx, part)
        return dx

    def _share(self, value: ir.Value) -> ir.Value:
        """``value``, of the shape of the mean, divided by the number of elements of each mean."""
        op = self.op
        sizes = [op.dim(self.x, axis) for axis in self.axes]
        known = [size for size in sizes if isinstance(size, int)]
        if len(known) == len(sizes):
            return op.Div(value, float(np.prod(known)))
        count = op.Div(op.Size(self.x), op.Max(op.Size(value), 1))
        return op.Div(value, op.cast_like(count, value))


def wide(op: GraphBuilder, x: ir.Value) -> ir.DataType:
    """The type of computation: float64 for float64, otherwise float32."""
    return ir.DataType.DOUBLE if op.dtype(x) == ir.DataType.DOUBLE else ir.DataType.FLOAT


def deviations(
    op: GraphBuilder, x: ir.Value, axes: list[int], epsilon: float, *, centered: bool = True
) -> tuple[ir.Value, ir.Value]:
    """d = x - mean over ``axes``, or x if not ``centered``, and 1/√(mean d² + epsilon)."""
    deviation = op.Sub(x, op.mean(x, axes)) if centered else x
    variance = op.mean(op.Mul(deviation, deviation), axes)
    return deviation, op.Reciprocal(op.Sqrt(op.Add(variance, epsilon)))


def _axes(node: PrimalNode) -> list[int]:
    """The axes from ``axis`` on, counted from the end."""
    axis = node.attribute("axis", -1)
    return list(range(axis if axis < 0 else axis - node.rank(node.x), 0))


# Along the last axes --------------------------------------------------------------------------


@gradient("LayerNormalization")
def layer_normalization(
    op: GraphBuilder, node: PrimalNode, dy: _Maybe, dmean: _Maybe = None, dinverse: _Maybe = None
) -> Cotangents:
    """(g - mean g - x̂ mean(g x̂)) / σ with g = scale dy; Σ x̂ dy; Σ dy."""
    x = node.x
    # the outputs mean and 1/σ are float32
    given = None if op.dtype(x) == ir.DataType.DOUBLE else (node.output(1), node.output(2))
    norm = _Norm(op, node, x, _axes(node), given=given)
    dx, *rest = norm.scaled(dy, node.input(1), node.optional(2))
    dx = norm.with_statistics(dx, dmean, dinverse)
    return norm.narrow(dx), *rest


@gradient("RMSNormalization", since=23)
def rms_normalization(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """(g - x̂ mean(g x̂)) / r with g = scale dy and r = √mean(x²); Σ x̂ dy."""
    norm = _Norm(op, node, node.x, _axes(node), centered=False)
    dx, dscale, _ = norm.scaled(dy, node.input(1), None)
    return norm.narrow(dx), dscale


@gradient("SimplifiedLayerNormalization")
def simplified_layer_normalization(
    op: GraphBuilder, node: PrimalNode, dy: _Maybe, dinverse: _Maybe = None
) -> Cotangents:
    """(g - x̂ mean(g x̂)) / r with g = scale dy and r = √mean(x²); Σ x̂ dy."""
    x = node.x
    given = None if op.dtype(x) == ir.DataType.DOUBLE else (None, node.output(1))
    norm = _Norm(op, node, x, _axes(node), centered=False, given=given)
    dx, dscale, _ = norm.scaled(dy, node.input(1), None)
    return norm.narrow(norm.with_statistics(dx, None, dinverse)), dscale


# Of sums --------------------------------------------------------------------------------------


@gradient("com.microsoft::SkipLayerNormalization")
def skip_layer_normalization(op: GraphBuilder, node: PrimalNode, dy: _Maybe, *others: _Maybe) -> Cotangents:
    """As LayerNormalization, for each summand."""
    norm = _Norm(op, node, node.output(3), [-1], epsilon=1e-12)
    dx, dscale, dbias = norm.scaled(dy, node.input(2), node.optional(3))
    dx = _of_sum(op, node, dx, *others)
    return dx, _to(op, node, dx, 1), dscale, dbias, _to(op, node, dx, 4)


@gradient("com.microsoft::SkipSimplifiedLayerNormalization")
def skip_simplified_layer_normalization(
    op: GraphBuilder, node: PrimalNode, dy: _Maybe, *others: _Maybe
) -> Cotangents:
    """As RMSNormalization, for each summand."""
    norm = _Norm(op, node, node.output(3), [-1], centered=False, epsilon=1e-12)
    dx, dscale, _ = norm.scaled(dy, node.input(2), None)
    dx = _of_sum(op, node, dx, *others)
    return dx, _to(op, node, dx, 1), dscale, _to(op, node, dx, 3)


def _of_sum(op: GraphBuilder, node: PrimalNode, dx: _Maybe, *others: _Maybe) -> ir.Value:
    """The cotangent of the sum: through its normalization, plus that of the sum as an output."""
    *statistics, dsum = [*others, None, None, None][:3]
    if any(value is not None for value in statistics):
        raise node.refusal("no kernel computes its outputs mean and 1/σ")
    if dx is None:
        assert dsum is not None
        return dsum
    dx = op.cast_like(dx, node.x)
    return dx if dsum is None else op.Add(dx, dsum)


def _to(op: GraphBuilder, node: PrimalNode, dx: ir.Value, index: int) -> _Maybe:
    """The gradient of an optional summand, which broadcasts to the shape of the first input."""
    summand = node.optional(index)
    return None if summand is None else op.reduce_to(dx, summand, node.x)


@decomposition("com.microsoft::EmbedLayerNormalization")
def embed_layer_normalization(op: GraphBuilder, node: PrimalNode) -> list[_Maybe]:
    """By decomposition: LayerNormalization of the sum of the embeddings."""
    op.require_opset(17)
    ids, segments, words, positions, kinds, scale, bias = (node.optional(index) for index in range(7))
    at = node.optional(8)
    at = op.Unsqueeze(op.arange(op.dim(node.x, 1)), [0]) if at is None else at
    total = op.Add(op.Gather(words, ids, axis=0), op.Gather(positions, at, axis=0))
    if segments is not None and kinds is not None:
        total = op.Add(total, op.Gather(kinds, segments, axis=0))
    epsilon = float(node.attribute("epsilon", 1e-12))
    return [op.LayerNormalization(total, scale, bias, axis=-1, epsilon=epsilon), None, total]


# By instance and by group ---------------------------------------------------------------------


@gradient("InstanceNormalization")
def instance_normalization(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """As LayerNormalization over the spatial axes, with a scale and a bias per channel."""
    x, rank = node.x, node.rank(node.x)
    norm = _Norm(op, node, x, list(range(2 - rank, 0)))
    scale = op.Unsqueeze(norm.wide(node.input(1)), list(range(1, rank - 1)))
    dx, *rest = _by_channel(norm, norm.wide(dy), scale, [0, *range(2, rank)])
    return norm.narrow(dx), *map(norm.narrow, rest)


@gradient("GroupNormalization", since=18, before=21)
def group_normalization_by_group(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """As LayerNormalization over each group, with a scale and a bias per group."""
    x, groups = node.x, node.attribute("num_groups")
    split = [0, groups, -1]
    norm = _Norm(op, node, op.Reshape(x, split), [-1])
    scale = op.Unsqueeze(norm.wide(node.input(1)), [1])
    dx, *rest = _by_channel(norm, norm.wide(op.Reshape(dy, split)), scale, [0, 2])
    return op.reshape_like(op.cast_like(dx, x), x), *map(norm.narrow, rest)


@gradient("GroupNormalization", since=21)
def group_normalization(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """As LayerNormalization over each group, with a scale and a bias per channel."""
    x, groups = node.x, node.attribute("num_groups")
    channels = op.dim(node.input(1), 0)
    size = channels // groups if isinstance(channels, int) else op.Div(channels, groups)
    split = op.shape(0, groups, size, -1)
    norm = _Norm(op, node, op.Reshape(x, split), [-2, -1])
    scale = op.Reshape(norm.wide(node.input(1)), [groups, -1, 1])
    dx, *rest = _by_channel(norm, norm.wide(op.Reshape(dy, split)), scale, [0, 3])
    rest = [op.Reshape(op.cast_like(value, x), [-1]) for value in rest]
    return op.reshape_like(op.cast_like(dx, x), x), *rest


def _by_channel(
    norm: _Norm, dy: ir.Value, scale: ir.Value, others: list[int]
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """The gradients of x, scale and bias; scale and bias do not vary along ``others``."""
    op = norm.op
    dscale = op.ReduceSum(op.Mul(dy, norm.hat), others, keepdims=0)
    return norm.back(op.Mul(dy, scale)), dscale, op.ReduceSum(dy, others, keepdims=0)
