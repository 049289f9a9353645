"""Operators of onnxruntime that are equivalent to standard operators."""

from __future__ import annotations

from graphopt import ir
from graphopt.autodiff.graph_builder import GraphBuilder
from graphopt.autodiff.primal_node import PrimalNode
from graphopt.autodiff.reverse_mode import decomposition

#: Names of the modes of GridSample since opset 20.
_MODES = {"bilinear": "linear", "bicubic": "cubic"}


@decomposition("com.microsoft::Trilu", "com.microsoft::Pad", "com.microsoft::GatherND")
def alike(op: GraphBuilder, node: PrimalNode) -> ir.Value:
    """By the standard's operator."""
    op.require_opset(14)
    return op.node(node.op_type, node.inputs, node.raw.attributes)


@decomposition("com.microsoft::GridSample")
def grid_sample(op: GraphBuilder, node: PrimalNode) -> ir.Value:
    """By the standard's operator."""
    op.require_opset(16)
    mode = node.attribute("mode", "bilinear")
    changed = {"mode": _MODES.get(mode, mode)} if op.version >= 20 else {}
    return op.node("GridSample", node.inputs, {**node.raw.attributes, **changed})
