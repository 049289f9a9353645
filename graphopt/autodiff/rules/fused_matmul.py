"""onnxruntime's matrix product with transposed operands and a scaled result."""

from __future__ import annotations

from graphopt import ir
from graphopt.autodiff.graph_builder import GraphBuilder
from graphopt.autodiff.primal_node import PrimalNode
from graphopt.autodiff.reverse_mode import decomposition


@decomposition("com.microsoft::FusedMatMul", "com.microsoft::TransposeMatMul")
def fused_matmul(op: GraphBuilder, node: PrimalNode) -> ir.Value:
    """By decomposition: alpha MatMul(Aᵀ, Bᵀ), with the transposes of the attributes."""
    y = op.MatMul(_side(op, node, 0, "A"), _side(op, node, 1, "B"))
    alpha = float(node.attribute("alpha", 1.0))
    return y if alpha == 1 else op.Mul(y, alpha)


def _side(op: GraphBuilder, node: PrimalNode, index: int, side: str) -> ir.Value:
    """An operand of the product: its first axis moved behind the batch axes, then the last two swapped."""
    x = node.input(index)
    rank = node.rank(x)
    axes = list(range(rank))
    if rank > 2 and node.attribute(f"transBatch{side}", 0):
        axes.insert(rank - 2, axes.pop(0))
    if rank > 1 and node.attribute(f"trans{side}", 0):
        axes[-2:] = axes[:-3:-1]
    return x if axes == sorted(axes) else op.Transpose(x, perm=axes)
