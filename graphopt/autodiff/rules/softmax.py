"""Softmax and LogSoftmax, in terms of the result."""

from __future__ import annotations

from graphopt import ir
from graphopt.autodiff.graph_builder import GraphBuilder
from graphopt.autodiff.primal_node import PrimalNode
from graphopt.autodiff.rule_registry import Cotangents, gradient


@gradient("Softmax", since=13)
def softmax(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """y (dy - Σ y dy)."""
    y = _without_nan(op, node.y, node.y)
    total = op.ReduceSum(op.Mul(dy, y), [node.attribute("axis", -1)], keepdims=1)
    return op.Mul(op.Sub(dy, total), y)


@gradient("LogSoftmax", since=13)
def log_softmax(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """dy - exp(y) Σ dy."""
    soft = _without_nan(op, op.Exp(node.y), node.y)
    return op.Sub(dy, op.Mul(soft, op.ReduceSum(dy, [node.attribute("axis", -1)], keepdims=1)))


def _without_nan(op: GraphBuilder, value: ir.Value, y: ir.Value) -> ir.Value:
    """``value`` with 0 instead of NaN, if the model replaces NaN in y by a Where or IsNaN.

    The softmax of a row of -inf, with all elements masked, is NaN. A model that replaces this NaN has a
    cotangent of 0 for it; 0 · NaN must not become NaN.
    """
    pending, hides = [y], False
    while pending and not hides:
        for node in ir.readers(pending.pop()):
            hides = hides or node.op_type in ("Where", "IsNaN")
            if node.op_type in ("Cast", "CastLike", "Identity"):
                pending.append(node.outputs[0])
    return op.Where(op.IsNaN(value), op.number(0.0, value), value) if hides else value
