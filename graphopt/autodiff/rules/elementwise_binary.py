"""Element-wise operators of two and more operands; ``broadcasts`` sums over broadcast axes."""

from __future__ import annotations

import numpy as np

from graphopt import ir
from graphopt.autodiff.graph_builder import GraphBuilder
from graphopt.autodiff.primal_node import PrimalNode
from graphopt.autodiff.rule_registry import Cotangents, gradient


@gradient("Add", broadcasts=True)
def add(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """dy; dy."""
    return dy, dy


@gradient("Sub", broadcasts=True)
def sub(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """dy; -dy."""
    return dy, op.Neg(dy)


@gradient("Mul", broadcasts=True)
def mul(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """dy b; dy a."""
    return op.Mul(dy, node.input(1)), op.Mul(dy, node.x)


@gradient("Div", broadcasts=True)
def div(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """dy / b; -y dy / b."""
    da = op.Div(dy, node.input(1))
    return da, op.Neg(op.Mul(da, node.y))


@gradient("Pow", broadcasts=True)
def pow_(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """b a^(b-1) dy, 0 where b = 0; y ln(a) dy, 0 where y = 0."""
    a, b = node.x, node.input(1)
    return op.Mul(dy, _by_base(op, node, a, b)), _by_exponent(op, node, dy, a, b)


def _by_base(op: GraphBuilder, node: PrimalNode, a: ir.Value, b: ir.Value) -> ir.Value:
    exponent = node.constant(1)
    if exponent is not None and exponent.size == 1:
        number = float(exponent.reshape(()))
        if number == 0:
            return op.zeros_like(a)
        if number == 1:
            return op.ones_like(a)
        power = a if number == 2 else op.Pow(a, number - 1)
        return op.Mul(power, number)
    b = op.cast_like(b, a)
    is_zero = op.Equal(b, 0.0)
    power = op.Pow(a, op.Sub(op.Where(is_zero, op.number(1.0, b), b), 1.0))
    return op.Mul(power, b)


def _by_exponent(
    op: GraphBuilder, node: PrimalNode, dy: ir.Value, a: ir.Value, b: ir.Value
) -> ir.Value | None:
    if not node.needs_grad(1):
        return None
    at_zero = op.And(op.Equal(a, 0.0), op.GreaterOrEqual(b, op.number(0.0, b)))
    logarithm = op.Log(op.Where(at_zero, op.number(1.0, a), a))
    return op.cast_like(op.Mul(dy, op.Mul(node.y, logarithm)), b)


@gradient("Mod", broadcasts=True)
def mod(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """dy; -dy (a - y) / b."""
    quotient = op.Round(op.Div(op.Sub(node.x, node.y), node.input(1)))
    return dy, op.Neg(op.Mul(dy, quotient))


@gradient("Sum", broadcasts=True)
def sum_(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """dy for each operand."""
    return [dy] * len(node.inputs)


@gradient("Mean", broadcasts=True)
def mean(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """dy / n for each of n operands."""
    share = op.Div(dy, float(len(node.inputs)))
    return [share] * len(node.inputs)


@gradient("Max", "Min", broadcasts=True)
def extremum(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """dy, in equal shares, for the operands that equal y."""
    operands = [x for x in node.inputs if x is not None]
    if len(operands) == 1:
        return dy
    hits = [op.cast_like(op.Equal(x, node.y), node.y) for x in operands]
    count = hits[0]
    for hit in hits[1:]:
        count = op.Add(count, hit)
    share = op.Div(dy, count)
    return [op.Mul(share, hit) for hit in hits]


@gradient("PRelu", broadcasts=True)
def prelu(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """slope dy if x < 0 else dy; x dy if x < 0 else 0."""
    x, slope = node.x, node.input(1)
    below = op.Less(x, 0.0)
    return op.Where(below, op.Mul(dy, slope), dy), op.only_where(below, op.Mul(dy, x))


@gradient("Where", broadcasts=True)
def where(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """dy where the condition selects the operand, otherwise 0."""
    condition = node.x
    zero = op.number(np.float64(0.0), dy)
    return None, op.Where(condition, dy, zero), op.Where(condition, zero, dy)
