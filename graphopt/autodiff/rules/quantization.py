"""Quantization. Rounding has no gradient; scales have one."""

from __future__ import annotations

from graphopt import ir
from graphopt.autodiff.graph_builder import GraphBuilder, Size
from graphopt.autodiff.primal_node import PrimalNode
from graphopt.autodiff.reverse_mode import decomposition
from graphopt.autodiff.rule_registry import Cotangents, gradient, non_differentiable

rounding = non_differentiable("QuantizeLinear", "com.microsoft::QuantizeLinear", reason="it rounds")
whole = non_differentiable(
    *("QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger"),
    reason="it computes with integers",
)


@gradient("DequantizeLinear", "com.microsoft::DequantizeLinear")
def dequantize(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """dscale: Σ (x - zero) dy."""
    scale = node.input(1)
    inputs = [node.x, op.ones_like(scale), *node.inputs[2:]]
    apart = op.node("DequantizeLinear", inputs, node.raw.attributes, domain=node.raw.domain)
    terms = op.cast_like(op.Mul(apart, dy), scale)
    rank = node.rank(node.x)
    axis = int(node.attribute("axis", 1)) % max(rank, 1)
    block = int(node.attribute("block_size", 0))
    if block:
        return None, _by_blocks(op, terms, op.dim(scale, axis), block, axis, rank)
    if node.rank(scale) == 0 or op.dim(scale, 0) == 1:
        return None, op.reshape_like(op.ReduceSum(terms, keepdims=0), scale)
    return None, op.reduce_to(_summed(op, terms, [i for i in range(rank) if i != axis]), scale)


def _summed(op: GraphBuilder, x: ir.Value, axes: list[int]) -> ir.Value:
    return op.ReduceSum(x, axes, keepdims=0) if axes else x


def _by_blocks(op: GraphBuilder, terms: ir.Value, count: Size, block: int, axis: int, rank: int) -> ir.Value:
    """The sums of ``count`` blocks along an axis; the last block may be shorter."""
    size = op.dim(terms, axis)
    if isinstance(size, int) and isinstance(count, int):
        missing: Size = count * block - size
    else:
        whole = count * block if isinstance(count, int) else op.Mul(count, [block])
        missing = op.Sub([whole] if isinstance(whole, int) else whole, op.shape(size))
    if missing != 0:
        none = [0] * rank
        terms = op.Pad(terms, op.shape(*none, *none[:axis], missing, *none[axis + 1 :]))
    sizes = [op.dim(terms, other) for other in range(rank)]
    split = op.shape(*sizes[:axis], count, block, *sizes[axis + 1 :])
    return op.ReduceSum(op.reshape(terms, split), [axis + 1], keepdims=0)


@decomposition("DynamicQuantizeLinear")
def dynamic_quantize(op: GraphBuilder, node: PrimalNode) -> list[ir.Value | None]:
    """By decomposition of the scale: (max(x, 0) - min(x, 0)) / 255."""
    if node.is_useful(node.y):
        op.warn_incomplete(node, "it rounds; only the gradient through its scale flows")
    high = op.Max(op.ReduceMax(node.x, keepdims=0), 0.0)
    low = op.Min(op.ReduceMin(node.x, keepdims=0), 0.0)
    return [None, op.Div(op.Sub(high, low), 255.0)]
