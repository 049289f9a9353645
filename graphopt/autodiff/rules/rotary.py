"""Rotary position embeddings: a rotation, whose transpose is the inverse rotation."""

from __future__ import annotations

from graphopt import ir
from graphopt.autodiff.building_blocks.attention import merged_heads, split_heads
from graphopt.autodiff.graph_builder import GraphBuilder
from graphopt.autodiff.primal_node import PrimalNode
from graphopt.autodiff.reverse_mode import vjp_of_decomposition, vjp_of_standard_function
from graphopt.autodiff.rule_registry import Cotangents, gradient


@gradient("RotaryEmbedding")
def rotary(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """RotaryEmbedding(dy, cos, -sin)."""
    if node.needs_grad(1) or node.needs_grad(2):
        return vjp_of_standard_function(op, node, [dy])
    inputs = [dy, node.input(1), op.Neg(node.input(2)), *node.inputs[3:]]
    return op.node("RotaryEmbedding", inputs, node.raw.attributes)


@gradient("com.microsoft::RotaryEmbedding")
def rotary_of_runtime(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """RotaryEmbedding(dy, cos, -sin)."""
    if node.needs_grad(2) or node.needs_grad(3):
        return vjp_of_decomposition(op, node, [dy], lambda: _decomposed(op, node))
    inputs = [dy, node.input(1), node.input(2), op.Neg(node.input(3))]
    return op.node("RotaryEmbedding", inputs, node.raw.attributes, domain=ir.MICROSOFT)


def _decomposed(op: GraphBuilder, node: PrimalNode) -> ir.Value:
    """The operator in terms of standard ones, for gradients of its tables."""
    x, positions, cos, sin = (node.input(index) for index in range(4))
    if node.attribute("is_packed_batching", 0):
        raise node.refusal("its batches are packed")
    half, heads = op.dim(cos, 1), node.attribute("num_heads", 0)
    rows = node.rank(x) == 3
    if rows:
        width = op.dim(x, 2)
        heads = heads or (isinstance(width, int) and isinstance(half, int) and width // (2 * half))
        if not heads:
            raise node.refusal("the number of heads is unknown")
        x = split_heads(op, x, heads)
    if node.rank(positions) == 1:
        positions = op.Unsqueeze(op.Add(op.arange(op.dim(x, 2)), positions), [0])
    c, s = (op.Unsqueeze(op.Gather(table, positions), [1]) for table in (cos, sin))
    size = op.dim(x, 3)
    if not isinstance(size, int) or not isinstance(half, int):
        raise node.refusal("the head size is unknown")
    turned = 2 * half
    part, *rest = op.Split(x, [turned, size - turned], axis=3, outputs=2) if turned < size else [x]
    paired = bool(node.attribute("interleaved", 0))
    if paired:
        pairs = op.Reshape(part, [0, 0, -1, half, 2])
        a, b = (op.Squeeze(side, [4]) for side in op.Split(pairs, [1, 1], axis=4, outputs=2))
    else:
        a, b = op.Split(part, [half, half], axis=3, outputs=2)
    first, second = op.Sub(op.Mul(a, c), op.Mul(b, s)), op.Add(op.Mul(b, c), op.Mul(a, s))
    if paired:
        joined = op.Concat(op.Unsqueeze(first, [4]), op.Unsqueeze(second, [4]), axis=4)
        y = op.reshape_like(joined, part)
    else:
        y = op.Concat(first, second, axis=3)
    if rest:
        y = op.Concat(y, *rest, axis=3)
    return merged_heads(op, y) if rows else y
