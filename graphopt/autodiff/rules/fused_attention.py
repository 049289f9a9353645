"""onnxruntime's attention operators, as its CPU kernels compute them."""

from __future__ import annotations

from graphopt import ir
from graphopt.autodiff.building_blocks.attention import (
    Attention,
    causal_bias,
    split_heads,
    usual_scale,
)
from graphopt.autodiff.graph_builder import GraphBuilder, Size
from graphopt.autodiff.primal_node import PrimalNode
from graphopt.autodiff.reverse_mode import vjp_to_inputs
from graphopt.autodiff.rule_registry import Cotangents, gradient

Given = list[tuple[ir.Value, ir.Value | None]]


@gradient("com.microsoft::MultiHeadAttention")
def multi_head_attention(
    op: GraphBuilder,
    node: PrimalNode,
    dy: ir.Value | None,
    dk: ir.Value | None = None,
    dv: ir.Value | None = None,
    dscores: ir.Value | None = None,
) -> Cotangents:
    """By Attention on operands split into heads, after adding the bias of the projections."""
    if dscores is not None:
        raise node.refusal("a gradient of its scores is needed")
    node.refuse_inputs({8: "its key/value cache is a buffer", 9: "its cache is shared by beams"})
    mark, heads = op.mark(), int(node.attribute("num_heads"))
    q, k, v = node.x, node.input(1), node.input(2)
    if node.rank(q) != 3 or node.rank(k) == 5:
        raise node.refusal("queries, keys and values are packed")
    if node.optional(3) is not None:
        q, k, v = _add_biases(op, node, q, k, v)
    q, k, v = (split_heads(op, x, heads) if node.rank(x) == 3 else x for x in (q, k, v))
    past: Size = 0
    if node.optional(6) is not None:
        past = op.dim(node.input(6), 2)
        k, v = (op.Concat(node.input(index), x, axis=2) for index, x in ((6, k), (7, v)))
    given: Given = [(k, dk), (v, dv)]
    if dy is not None:
        given += _cotangents_of_operands(op, node, (q, k, v), heads, past, mask=4, bias=5, dy=dy)
    return vjp_to_inputs(op, node, mark, given)


def _add_biases(
    op: GraphBuilder, node: PrimalNode, q: ir.Value, k: ir.Value, v: ir.Value
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Queries, keys and values with their parts of the bias; keys and values of rank 4 already include it."""
    bias, width = node.input(3), op.dim(q, 2)
    if node.rank(k) == 4:
        return op.Add(q, op.Slice(bias, [0], op.shape(width), [0])), k, v
    sizes = op.shape(width, width, op.dim(v, 2))
    a, b, c = op.Split(bias, sizes, axis=0, outputs=3)
    return op.Add(q, a), op.Add(k, b), op.Add(v, c)


@gradient("com.microsoft::Attention")
def attention_of_projections(
    op: GraphBuilder, node: PrimalNode, dy: ir.Value | None, dpresent: ir.Value | None = None
) -> Cotangents:
    """By decomposition: Attention of the projections x W + b."""
    node.refuse_inputs({6: "its key/value cache is a buffer"})
    if node.attribute("do_rotary", 0):
        raise node.refusal("it applies a rotary embedding")
    mark, heads = op.mark(), int(node.attribute("num_heads"))
    weights, bias = node.input(1), node.optional(2)
    joined = op.MatMul(node.x, weights)
    if bias is not None:
        joined = op.Add(joined, bias)
    sizes = node.attribute("qkv_hidden_sizes")
    width = op.dim(weights, 1)
    if not sizes:
        if not isinstance(width, int):
            raise node.refusal("the head size is unknown")
        sizes = [width // 3] * 3
    q, k, v = (split_heads(op, x, heads) for x in op.Split(joined, list(sizes), axis=2, outputs=3))
    past: Size = 0
    if node.optional(4) is not None:
        past = op.dim(node.input(4), 3)
        parts = op.Split(node.input(4), [1, 1], axis=0, outputs=2)
        k, v = (op.Concat(op.Squeeze(part, [0]), x, axis=2) for part, x in zip(parts, (k, v), strict=True))
    given: Given = []
    if dpresent is not None:
        given.append((op.Concat(op.Unsqueeze(k, [0]), op.Unsqueeze(v, [0]), axis=0), dpresent))
    if dy is not None:
        given += _cotangents_of_operands(op, node, (q, k, v), heads, past, mask=3, bias=5, dy=dy)
    return vjp_to_inputs(op, node, mark, given)


def _cotangents_of_operands(
    op: GraphBuilder,
    node: PrimalNode,
    operands: tuple[ir.Value, ir.Value, ir.Value],
    heads: int,
    past: Size,
    *,
    mask: int,
    bias: int,
    dy: ir.Value,
) -> Given:
    """The cotangents of operands [B, N, S, D], and of the input ``bias``.

    Args:
        mask, bias: indices of the inputs that are added to the scores.
    """
    q, k, v = operands
    terms = []
    if node.optional(mask) is not None:
        terms.append(_key_mask(op, node, mask, k))
    if node.attribute("unidirectional", 0):
        terms.append(_causal(op, node, q, k, past))
    if node.optional(bias) is not None:
        terms.append(node.input(bias))
    scale = node.attribute("scale", 0.0) or usual_scale(op, q)
    found = Attention(q, k, v, heads=(heads, heads), scale=scale, bias=terms)
    dx = found.gradients(op, split_heads(op, dy, heads))
    given: Given = [(q, dx.q), (k, dx.k), (v, dx.v)]
    if node.needs_grad(bias):
        given.append((node.input(bias), op.reduce_to(dx.scores, node.input(bias))))
    return given


def _causal(op: GraphBuilder, node: PrimalNode, q: ir.Value, k: ir.Value, past: Size) -> ir.Value:
    """The additive causal mask, for as many new keys as queries."""
    queries, keys = op.dim(q, 2), op.dim(k, 2)
    if isinstance(queries, int) and isinstance(keys, int) and isinstance(past, int) and keys > past + queries:
        raise node.refusal("it is unidirectional with more keys than queries")
    return causal_bias(op, q, queries, keys, past)


def _key_mask(op: GraphBuilder, node: PrimalNode, index: int, k: ir.Value) -> ir.Value:
    """The additive mask of a key mask, [B, T] or [B, S, T], or of numbers of keys, [B] or [2 B]."""
    mask, rank = node.input(index), node.rank(node.input(index))
    low = op.number(float(node.attribute("mask_filter_value", -10000.0)), k)
    zero = op.number(0.0, k)
    if rank in (2, 3):
        return op.Where(op.Greater(op.Unsqueeze(mask, [1, 2] if rank == 2 else [1]), 0), zero, low)
    if rank != 1:
        raise node.refusal(f"its mask has {rank} axes")
    positions = op.cast_like(op.arange(op.dim(k, 2)), mask)
    shape, batch = node.shape(mask), (node.shape(node.x) or (None,))[0]
    if (
        node.op_type == "Attention"
        and shape is not None
        and (batch is None or not node.cx.facts.dim_equal(shape[0], batch))
    ):
        if not isinstance(shape[0], int) or not isinstance(batch, int):
            raise node.refusal("it is unknown whether its mask holds ends, or ends and starts")
        if shape[0] == 2 * batch:
            ends, starts = op.Split(mask, [batch, batch], axis=0, outputs=2)
            within = op.And(
                op.Less(positions, _by_batch(op, ends)), op.GreaterOrEqual(positions, _by_batch(op, starts))
            )
            return op.Where(within, zero, low)
    # the mask may be longer; CPU kernels read only its first part
    counts = op.Slice(mask, [0], op.shape(op.dim(node.x, 0)), [0])
    return op.Where(op.Less(positions, _by_batch(op, counts)), zero, low)


def _by_batch(op: GraphBuilder, x: ir.Value) -> ir.Value:
    """[B] as [B, 1, 1, 1]."""
    return op.Reshape(x, [-1, 1, 1, 1])
