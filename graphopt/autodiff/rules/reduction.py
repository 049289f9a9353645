"""Reductions and cumulative sums and products."""

from __future__ import annotations

import math
from collections.abc import Sequence

from graphopt import ir
from graphopt.autodiff.graph_builder import GraphBuilder
from graphopt.autodiff.primal_node import PrimalNode
from graphopt.autodiff.rule_registry import Cotangents, gradient, non_differentiable

whole_numbers = non_differentiable("ArgMax", "ArgMin", reason="its results are indices")


class _Reduction:
    """The reduced axes of a node, and conversions between the shapes of y and x.

    Args:
        may_idle: whether runtimes agree on the result if no axes are given.
    """

    def __init__(self, op: GraphBuilder, node: PrimalNode, *, may_idle: bool = True) -> None:
        self.op = op
        self.node = node
        axes: Sequence[int] | ir.Value | None = node.attribute("axes")
        given = node.optional(1)
        if given is not None:
            known = node.ints(1)
            axes = given if known is None else known
        empty = axes is None or (not isinstance(axes, ir.Value) and len(axes) == 0)
        self.keepdims = bool(node.attribute("keepdims", 1))
        idles = bool(node.attribute("noop_with_empty_axes", 0))
        self.idle = idles and empty
        if self.idle and not may_idle:
            raise node.refusal("runtimes disagree on its result without axes")
        self.axes = None if empty else axes
        sums = node.op_type == "ReduceSum" and self.keepdims  # the gradient is the same with and without axes
        if idles and isinstance(axes, ir.Value) and not sums:
            raise node.refusal("its axes may be empty, which would make it a no-op")

    def kept(self, value: ir.Value) -> ir.Value:
        """``value``, of the shape of y, with the removed axes restored at size 1."""
        # y is already of that shape, or is a scalar, which broadcasts
        if self.keepdims or self.idle or self.axes is None:
            return value
        axes = self.axes if isinstance(self.axes, ir.Value) else list(self.axes)
        return self.op.Unsqueeze(value, axes)

    def summed(self, value: ir.Value) -> ir.Value:
        """The sum of ``value``, of the shape of x, over the reduced axes, which are kept with size 1."""
        if self.idle:
            return value
        axes = self.axes if isinstance(self.axes, ir.Value) or self.axes is None else list(self.axes)
        return self.op.ReduceSum(value, axes, keepdims=1)

    def whole(self, value: ir.Value) -> ir.Value:
        """``value``, of the shape of y, broadcast to the shape of x."""
        return self.op.expand_like(self.kept(value), self.node.x)

    def count(self, like: ir.Value) -> ir.Value:
        """The number of elements reduced to each element of y."""
        op, node = self.op, self.node
        shape = node.cx.static_shape(node.x)
        if shape is not None and not isinstance(self.axes, ir.Value):
            axes = range(len(shape)) if self.axes is None else [axis % len(shape) for axis in self.axes]
            return op.number(float(math.prod(shape[axis] for axis in axes)), like)
        if self.axes is None:
            return op.cast_like(op.Size(node.x), like)
        results = op.Max(op.Size(node.y), 1)
        return op.cast_like(op.Div(op.Size(node.x), results), like)


@gradient("ReduceSum")
def reduce_sum(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """dy broadcast to the shape of x."""
    reduction = _Reduction(op, node)
    return dy if reduction.idle else reduction.whole(dy)


@gradient("ReduceMean")
def reduce_mean(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """dy / n broadcast to the shape of x."""
    reduction = _Reduction(op, node)
    return dy if reduction.idle else reduction.whole(op.Div(dy, reduction.count(dy)))


@gradient("ReduceMax", "ReduceMin")
def reduce_extremum(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """dy, in equal shares, for the elements that equal y."""
    reduction = _Reduction(op, node)
    if reduction.idle:
        return dy
    hits = op.cast_like(op.Equal(node.x, reduction.kept(node.y)), dy)
    return op.Mul(hits, op.Div(reduction.kept(dy), reduction.summed(hits)))


@gradient("ReduceProd")
def reduce_prod(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """dy times the product of the other elements, exact for zeros."""
    reduction = _Reduction(op, node)
    if reduction.idle:
        return dy
    x = node.x
    one, zero = op.number(1.0, x), op.number(0.0, x)
    is_zero = op.Equal(x, 0.0)
    others = op.Where(is_zero, one, x)
    product = _product(op, node, reduction, others)
    zeros = reduction.summed(op.cast_like(is_zero, x))
    at_zero = op.Where(op.Equal(zeros, 1.0), product, zero)
    elsewhere = op.Where(op.Equal(zeros, 0.0), op.Div(product, others), zero)
    return op.Mul(reduction.kept(dy), op.Where(is_zero, at_zero, elsewhere))


def _product(op: GraphBuilder, node: PrimalNode, reduction: _Reduction, x: ir.Value) -> ir.Value:
    """The product of ``x`` over the reduced axes, which are kept with size 1."""
    axes = reduction.axes
    if axes is None:
        return op.ReduceProd(x, keepdims=1)
    if node.version >= 18:
        return op.ReduceProd(x, axes if isinstance(axes, ir.Value) else list(axes), keepdims=1)
    return op.ReduceProd(x, axes=axes, keepdims=1)


@gradient("ReduceL1")
def reduce_l1(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """sign(x) dy."""
    reduction = _Reduction(op, node, may_idle=False)
    return op.Mul(op.Sign(node.x), reduction.kept(dy))


@gradient("ReduceL2")
def reduce_l2(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """x dy / y; 0 where y = 0."""
    reduction = _Reduction(op, node, may_idle=False)
    y = op.Where(op.Equal(node.y, 0.0), op.number(1.0, node.y), node.y)
    return op.Mul(node.x, reduction.kept(op.Div(dy, y)))


@gradient("ReduceSumSquare")
def reduce_sum_square(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """2x dy."""
    reduction = _Reduction(op, node, may_idle=False)
    return op.Mul(node.x, reduction.kept(op.Mul(dy, 2.0)))


@gradient("ReduceLogSum")
def reduce_log_sum(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """dy / exp(y) broadcast to the shape of x."""
    reduction = _Reduction(op, node, may_idle=False)
    return reduction.whole(op.Div(dy, op.Exp(node.y)))


@gradient("ReduceLogSumExp")
def reduce_log_sum_exp(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """exp(x - y) dy."""
    reduction = _Reduction(op, node, may_idle=False)
    return op.Mul(op.Exp(op.Sub(node.x, reduction.kept(node.y))), reduction.kept(dy))


@gradient("CumSum")
def cum_sum(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """CumSum(dy) from the other end."""
    reverse, exclusive = node.attribute("reverse", 0), node.attribute("exclusive", 0)
    return op.CumSum(dy, node.input(1), reverse=1 - reverse, exclusive=exclusive)


@gradient("CumProd")
def cum_prod(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """CumSum(y dy) from the other end, over x; exact for zeros.

    Second derivatives are exact only where x is not zero.
    """
    x, axis = node.x, node.input(1)
    reverse, exclusive = node.attribute("reverse", 0), node.attribute("exclusive", 0)
    is_zero = op.Equal(x, 0.0)
    zeros = op.CumSum(op.cast_like(is_zero, x), axis, reverse=reverse)
    # with respect to the first zero, the derivative is the product with 1 in place of this zero; with respect
    # to later elements, it is 0
    first = op.And(is_zero, op.Equal(zeros, 1.0))
    others = op.Where(is_zero, op.number(1.0, x), x)
    products = op.CumProd(op.Where(first, op.number(1.0, x), x), axis, reverse=reverse, exclusive=exclusive)

    def over(y: ir.Value) -> ir.Value:
        return op.CumSum(op.Mul(y, dy), axis, reverse=1 - reverse, exclusive=exclusive)

    before = op.only_where(op.Equal(zeros, 0.0), op.Div(over(node.y), others))
    return op.Where(first, over(products), before)
