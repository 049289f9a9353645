"""Range."""

from __future__ import annotations

from graphopt import ir
from graphopt.autodiff.graph_builder import GraphBuilder
from graphopt.autodiff.primal_node import PrimalNode
from graphopt.autodiff.rule_registry import Cotangents, gradient


@gradient("Range", "com.microsoft::Range")
def range_(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """dstart: Σ dy; dstep: Σ i dy."""
    start, step = node.x, node.optional(2)
    first = op.reshape_like(op.ReduceSum(dy, keepdims=0), start)
    if step is None:
        return first
    counts = op.Div(op.Sub(node.y, start), step)
    return first, None, op.reshape_like(op.ReduceSum(op.Mul(counts, dy), keepdims=0), step)
