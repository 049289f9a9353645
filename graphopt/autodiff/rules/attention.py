"""The standard's Attention."""

from __future__ import annotations

import numpy as np

from graphopt import ir
from graphopt.autodiff.building_blocks.attention import (
    Attention,
    additive_mask_where_not,
    causal_bias,
    lowest,
    split_heads,
    usual_scale,
)
from graphopt.autodiff.graph_builder import GraphBuilder, Size
from graphopt.autodiff.primal_node import PrimalNode
from graphopt.autodiff.reverse_mode import vjp_of_standard_function, vjp_to_inputs
from graphopt.autodiff.rule_registry import Cotangents, gradient

_MASK, _PAST_K, _PAST_V, _COUNTS = 3, 4, 5, 6


@gradient("Attention")
def attention(
    op: GraphBuilder,
    node: PrimalNode,
    dy: ir.Value | None,
    dk: ir.Value | None = None,
    dv: ir.Value | None = None,
    dscores: ir.Value | None = None,
) -> Cotangents:
    """scale dS K; scale dSᵀ Q; Pᵀ dy, where P = softmax(S) and dS is the cotangent of the scores S."""
    heads = _heads(node)
    if dscores is not None or heads is None:
        return vjp_of_standard_function(op, node, (dy, dk, dv, dscores))
    mark = op.mark()
    q, k, v = node.x, node.input(1), node.input(2)
    if node.rank(q) == 3:
        q, k, v = (split_heads(op, x, n) for x, n in ((q, heads[0]), (k, heads[1]), (v, heads[1])))
    past: Size = 0
    if node.optional(_PAST_K) is not None:
        past = op.dim(node.input(_PAST_K), 2)
        k, v = (op.Concat(node.input(index), x, axis=2) for index, x in ((_PAST_K, k), (_PAST_V, v)))
    given = [(k, dk), (v, dv)]
    if dy is not None:
        found = _attention_of(op, node, q, k, v, heads, past)
        dx = found.gradients(op, split_heads(op, dy, heads[0]) if node.rank(node.x) == 3 else dy)
        given += [(q, dx.q), (k, dx.k), (v, dx.v)]
        if node.needs_grad(_MASK):
            mask = node.input(_MASK)
            given.append((mask, op.reduce_to(dx.scores, mask)))
    return vjp_to_inputs(op, node, mark, given)


def _heads(node: PrimalNode) -> tuple[int, int] | None:
    """The numbers of query heads and of key/value heads; (1, 1) if they are equal but unknown."""
    if node.rank(node.x) == 3:
        return node.attribute("q_num_heads"), node.attribute("kv_num_heads")
    shapes = [node.shape(node.x), node.shape(node.input(1))]
    if shapes[0] is None or shapes[1] is None:
        return None
    q_heads, kv_heads = shapes[0][1], shapes[1][1]
    if isinstance(q_heads, int) and isinstance(kv_heads, int):
        return q_heads, kv_heads
    return (1, 1) if node.cx.facts.dim_equal(q_heads, kv_heads) else None


def _attention_of(
    op: GraphBuilder,
    node: PrimalNode,
    q: ir.Value,
    k: ir.Value,
    v: ir.Value,
    heads: tuple[int, int],
    past: Size,
) -> Attention:
    """The attention that ``node`` computes, for operands [B, N, S, D] with ``past`` cached keys."""
    queries, keys = op.dim(q, 2), op.dim(k, 2)
    counts, mask = node.optional(_COUNTS), node.optional(_MASK)
    within = node.attribute("softmax_precision")
    causal = bool(node.attribute("is_causal", 0))
    bias = []
    if mask is not None:
        bias.append(additive_mask_where_not(op, mask, q) if op.dtype(mask) == ir.DataType.BOOL else mask)
    if counts is not None:  # the number of valid keys in each batch
        counts = op.Reshape(counts, [-1, 1, 1, 1])
        positions = op.arange(keys)
        bias.append(additive_mask_where_not(op, op.Less(positions, counts), q))
        if causal:
            last = op.Add(op.Unsqueeze(op.arange(queries), [1]), op.Sub(counts, op.shape(queries)))
            bias.append(additive_mask_where_not(op, op.LessOrEqual(positions, last), q))
    elif causal:
        bias.append(causal_bias(op, q, queries, keys, past))
    return Attention(
        *(q, k, v),
        heads=heads,
        scale=node.attribute("scale") or usual_scale(op, q),
        softcap=node.attribute("softcap", 0.0),
        bias=bias,
        may_hide_all=counts is not None or (mask is not None and _may_hide_all(op, node, causal)),
        within=None if within is None else ir.DataType(within),
    )


def _may_hide_all(op: GraphBuilder, node: PrimalNode, causal: bool) -> bool:
    """Whether the mask may exclude all keys of a query."""
    mask = node.constant(_MASK)
    if mask is None:
        return True
    if mask.dtype == np.bool_:
        return causal or not mask.any(axis=-1).all()
    return bool(np.min(mask, initial=0) <= lowest(op.dtype(node.input(_MASK))))
