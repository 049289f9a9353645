"""onnxruntime's GroupQueryAttention, as its CPU kernel computes it."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphopt import ir
from graphopt.autodiff.building_blocks.attention import (
    Attention,
    additive_mask_where_not,
    causal_bias,
    split_heads,
    usual_scale,
)
from graphopt.autodiff.graph_builder import GraphBuilder, Size
from graphopt.autodiff.primal_node import PrimalNode
from graphopt.autodiff.reverse_mode import vjp_to_inputs
from graphopt.autodiff.rule_registry import Cotangents, gradient
from graphopt.util.lazy_dataclass import dataclass

_PAST_K, _PAST_V, _ENDS, _COS, _SIN, _POSITIONS, _BIAS, _SINKS = 3, 4, 5, 7, 8, 9, 10, 11
#: Inputs that the CPU kernel does not support, or that imply quantized keys and values.
_UNSUPPORTED = {
    12: "its keys are quantized",
    13: "its values are quantized",
    14: "it normalizes queries",
    15: "it normalizes keys",
}


@gradient("com.microsoft::GroupQueryAttention")
def group_query_attention(
    op: GraphBuilder,
    node: PrimalNode,
    dy: ir.Value | None,
    dk: ir.Value | None = None,
    dv: ir.Value | None = None,
    dscores: ir.Value | None = None,
) -> Cotangents:
    """By Attention with shared key/value heads, after the rotary embedding."""
    node.refuse_inputs(_UNSUPPORTED)
    if dscores is not None:
        raise node.refusal("a gradient of its scores is needed")
    if node.attribute("sliding_window_cache", 0):
        raise node.refusal("its cache is a sliding window")
    mark, heads = op.mark(), (int(node.attribute("num_heads")), int(node.attribute("kv_num_heads")))
    q, k, v = _operands(op, node, *heads)
    at = _Positions.of(op, node, q)
    if node.attribute("do_rotary", 0):
        q, k = _rotate(op, node, at, q), _rotate(op, node, at, k)
    given: list[tuple[ir.Value, ir.Value | None]] = []
    if node.optional(_PAST_K) is not None:
        k, v = (op.Concat(node.input(index), x, axis=2) for index, x in ((_PAST_K, k), (_PAST_V, v)))
        given += [(at.in_order(op, x, dx), dx) for x, dx in ((k, dk), (v, dv)) if dx is not None]
    else:
        given += [(k, dk), (v, dv)]
    if dy is not None:
        given += _cotangents_of_operands(op, node, (q, k, v), heads, at, dy)
    return vjp_to_inputs(op, node, mark, given)


def _operands(op: GraphBuilder, node: PrimalNode, q_heads: int, kv_heads: int) -> list[ir.Value]:
    """Queries, keys and values [B, N, S, D], from separate or packed inputs."""
    parts = [node.x, node.optional(1), node.optional(2)]
    if parts[1] is None:
        width = op.dim(node.x, 2)
        if not isinstance(width, int):
            raise node.refusal("the head size is unknown")
        size = width // (q_heads + 2 * kv_heads)
        parts = list(op.Split(node.x, [q_heads * size, kv_heads * size, kv_heads * size], axis=2, outputs=3))
    counts = (q_heads, kv_heads, kv_heads)
    return [split_heads(op, x, n) for x, n in zip(parts, counts, strict=True) if x is not None]


@dataclass
class _Positions:
    """Positions of queries and keys in their sequences, int64. Cached keys precede new ones.

    Attributes:
        queries: [S, 1] or [B, 1, S, 1].
        keys: [S] or [B, 1, 1, P + S]; unused cached keys have a position after all others.
        last: [B, 1, 1, 1], the position of the last key of each batch.
        first: [B, 1, 1, 1], the position of the first new key; ``None`` for 0 without a cache.
        past: P, the number of cached keys.
        full: whether all sequences are known to have length S.
    """

    queries: ir.Value
    keys: ir.Value
    last: ir.Value
    first: ir.Value | None
    past: Size
    full: bool

    @classmethod
    def of(cls, op: GraphBuilder, node: PrimalNode, q: ir.Value) -> _Positions:
        size = op.dim(q, 2)
        count = op.arange(size)
        rows = op.Unsqueeze(count, [1])
        last = op.Reshape(op.Cast(node.input(_ENDS), to=ir.DataType.INT64), [-1, 1, 1, 1])
        if node.optional(_PAST_K) is None:
            ends = node.constant(_ENDS)
            full = ends is not None and isinstance(size, int) and bool(np.all(ends == size - 1))
            return cls(rows, count, last, None, 0, full)
        before = [1 - size] if isinstance(size, int) else op.Sub([1], size)
        first = op.Max(op.Add(last, before), 0)
        past = op.dim(node.input(_PAST_K), 2)
        old = op.arange(past)
        kept = op.Where(op.Less(old, first), old, op.constant(np.int64(np.iinfo(np.int32).max)))
        return cls(
            op.Add(rows, first), op.Concat(kept, op.Add(count, first), axis=3), last, first, past, False
        )

    def in_order(self, op: GraphBuilder, x: ir.Value, like: ir.Value) -> ir.Value:
        """Keys or values [B, M, P + S, D] ordered by position, as the operator returns them."""
        assert self.first is not None
        at = op.Unsqueeze(op.arange(op.dim(like, 2)), [1])
        new = op.Add(op.Sub(at, self.first), [self.past] if isinstance(self.past, int) else self.past)
        newest = op.Sub(op.shape(op.dim(x, 2)), 1)
        index = op.Min(op.Where(op.Less(at, self.first), at, new), newest)
        return op.GatherElements(x, op.Expand(index, op.shape_of(like)), axis=2)


def _rotate(op: GraphBuilder, node: PrimalNode, at: _Positions, x: ir.Value) -> ir.Value:
    """Queries or keys [B, N, S, D] after the rotary embedding of their positions."""
    cos, sin, positions = node.input(_COS), node.input(_SIN), node.optional(_POSITIONS)
    if at.first is not None:
        positions = op.Reshape(at.queries, op.shape(-1, op.dim(x, 2))) if positions is None else positions
    elif positions is None:
        positions = op.constant(np.zeros(1, np.int64))
    else:  # without a cache, the kernel reads only the first position
        positions = op.Slice(op.Reshape(positions, [-1]), [0], [1], [0])
    size, half, heads = op.dim(x, 3), op.dim(cos, 1), op.dim(x, 1)
    if not isinstance(size, int) or not isinstance(half, int):
        raise node.refusal("the head size is unknown")
    attributes: dict[str, Any] = {"interleaved": int(node.attribute("rotary_interleaved", 0))}
    if 2 * half < size:
        attributes |= {"rotary_embedding_dim": 2 * half, "num_heads": heads}
    return op.node("RotaryEmbedding", [x, positions, cos, sin], attributes, domain=ir.MICROSOFT)


def _cotangents_of_operands(
    op: GraphBuilder,
    node: PrimalNode,
    operands: tuple[ir.Value, ir.Value, ir.Value],
    heads: tuple[int, int],
    at: _Positions,
    dy: ir.Value,
) -> list[tuple[ir.Value, ir.Value | None]]:
    """The cotangents of operands [B, N, S, D], of the bias, and of sinks."""
    q, k, v = operands
    bias, sinks = node.optional(_BIAS), node.optional(_SINKS)
    if sinks is None and node.attribute("smooth_softmax", 0) == 1:
        sinks = op.constant(np.zeros(1, op.dtype(q).numpy()))
    if bias is not None and at.first is not None:
        wide = op.Expand(bias, op.shape(op.dim(q, 0), 1, 1, 1))
        newest = op.Sub(op.shape(op.dim(wide, 3)), 1)
        index = op.Expand(op.Min(at.keys, newest), op.shape(1, op.dim(wide, 1), op.dim(wide, 2), 1))
        bias = op.GatherElements(wide, index, axis=3)
    found = Attention(
        *(q, k, v),
        heads=heads,
        scale=node.attribute("scale", 0.0) or usual_scale(op, q),
        softcap=node.attribute("softcap", 0.0),
        bias=[_hidden(op, node, q, at), *([] if bias is None else [bias])],
        sinks=sinks,
    )
    dx = found.gradients(op, split_heads(op, dy, heads[0]))
    given: list[tuple[ir.Value, ir.Value | None]] = [(q, dx.q), (k, dx.k), (v, dx.v)]
    if bias is not None and node.needs_grad(_BIAS):
        given.append((bias, op.reduce_to(dx.scores, bias)))
    if node.needs_grad(_SINKS):
        given.append((node.input(_SINKS), dx.sinks))
    return given


def _hidden(op: GraphBuilder, node: PrimalNode, q: ir.Value, at: _Positions) -> ir.Value:
    """The additive mask of unused keys, later keys, and keys outside of the local window."""
    causal, window = bool(node.attribute("causal", 1)), int(node.attribute("local_window_size", -1))
    if causal and at.full and window < 0:
        return causal_bias(op, q, op.dim(q, 2), op.dim(q, 2))
    visible = op.LessOrEqual(at.keys, op.Min(at.queries, at.last) if causal else at.last)
    if window > 0:
        visible = op.And(visible, op.Greater(at.keys, op.Sub(at.queries, window)))
    return additive_mask_where_not(op, visible, q)
