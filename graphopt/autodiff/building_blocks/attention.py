"""Gradients of attention, in terms of standard operators.

Sizes: B batches, N query heads, M key/value heads, S queries, T keys, and head sizes D (queries, keys) and E
(values). N / M consecutive query heads share a key/value head.
"""

from __future__ import annotations

import math
from dataclasses import field
from typing import NamedTuple

import numpy as np

from graphopt import ir
from graphopt.autodiff.graph_builder import GraphBuilder, Size
from graphopt.util.lazy_dataclass import dataclass


class AttentionGradients(NamedTuple):
    """Cotangents of queries, keys and values, with their shapes, of scores [B, N, S, T], and of sinks [N]."""

    q: ir.Value
    k: ir.Value
    v: ir.Value
    scores: ir.Value
    sinks: ir.Value | None


@dataclass
class Attention:
    """softmax(c tanh(scale q kᵀ / c) + bias) v, as Vaswani et al. (2017) and the standard define it.

    Attributes:
        q, k, v: [B, N, S, D], [B, M, T, D] and [B, M, T, E], of one element type.
        heads: N and M, ints if they differ.
        scale: factor of the scores.
        softcap: c; 0 for none.
        bias: summands of the scores, which broadcast against [B, N, S, T].
        may_hide_all: whether the bias may mask all keys of a query, whose result is then 0.
        sinks: [N], an additional score for each head, without a value.
        within: the element type of the softmax; ``None`` for that of the operands.
    """

    q: ir.Value
    k: ir.Value
    v: ir.Value
    heads: tuple[Size, Size]
    scale: float | ir.Value
    softcap: float = 0.0
    bias: list[ir.Value] = field(default_factory=list)
    may_hide_all: bool = False
    sinks: ir.Value | None = None
    within: ir.DataType | None = None

    def gradients(self, op: GraphBuilder, dy: ir.Value) -> AttentionGradients:
        """The cotangents of the operands, given ``dy`` [B, N, S, E]."""
        q, dy = op.Mul(self.q, self.scale), self._merge_query_groups(op, dy)
        q = self._merge_query_groups(op, q)
        scores = self._by_heads(op, op.MatMul(q, transposed(op, self.k)))
        capped = None
        if self.softcap:
            capped = op.Tanh(op.Mul(scores, 1 / self.softcap))
            scores = op.Mul(capped, self.softcap)
        weights, sink_weights = self._weights(op, scores)
        grouped = self._merge_query_groups(op, weights)
        dv = op.MatMul(transposed(op, grouped), dy)
        dweights = op.Mul(self._by_heads(op, op.MatMul(dy, transposed(op, self.v))), weights)
        mean = op.ReduceSum(dweights, [-1], keepdims=1)
        dbiased = op.Sub(dweights, op.Mul(weights, mean))
        dsinks = None
        if sink_weights is not None:
            dsinks = op.Neg(op.ReduceSum(op.Mul(sink_weights, mean), [0, 2, 3], keepdims=0))
        dscores = dbiased if capped is None else op.Mul(dbiased, op.Sub(1.0, op.Mul(capped, capped)))
        dscores = self._merge_query_groups(op, dscores)
        dq = op.Mul(op.MatMul(dscores, self.k), self.scale)
        dk = op.MatMul(transposed(op, dscores), q)
        return AttentionGradients(self._by_heads(op, dq), dk, dv, dbiased, dsinks)

    def _weights(self, op: GraphBuilder, scores: ir.Value) -> tuple[ir.Value, ir.Value | None]:
        """The softmax weights of keys [B, N, S, T] and of sinks [B, N, S, 1]."""
        dtype, dead = op.dtype(scores), None
        if self.bias:
            bias = self.bias[0]
            for more in self.bias[1:]:
                bias = op.Add(bias, more)
            if self.may_hide_all:
                low = op.number(lowest(dtype), bias)
                bias = op.Max(bias, low)
                dead = op.LessOrEqual(_greatest(op, bias), low)
            scores = op.Add(scores, bias)
        if self.within is not None:
            scores = op.cast(scores, self.within)
        sink_weights = None
        if self.sinks is not None:
            first = op.Slice(scores, [0], [1], [-1])
            column = op.expand_like(op.cast_like(op.Reshape(self.sinks, [1, -1, 1, 1]), scores), first)
            all_weights = op.Softmax(op.Concat(scores, column, axis=-1), axis=-1)
            weights = op.Slice(all_weights, [0], [-1], [-1])
            sink_weights = op.cast(op.Slice(all_weights, [-1], [_END], [-1]), dtype)
        else:
            weights = op.Softmax(scores, axis=-1)
        weights = op.cast(weights, dtype)
        return weights if dead is None else op.Where(dead, op.number(0.0, weights), weights), sink_weights

    def _merge_query_groups(self, op: GraphBuilder, x: ir.Value) -> ir.Value:
        """[B, N, S, …] as [B, M, N / M * S, …]: queries that share keys are merged."""
        q_heads, kv_heads = self.heads
        if q_heads == kv_heads or not isinstance(q_heads, int) or not isinstance(kv_heads, int):
            return x
        queries, share = op.dim(self.q, 2), q_heads // kv_heads
        rows = queries * share if isinstance(queries, int) else op.Mul(queries, [share])
        return op.Reshape(x, op.shape(0, kv_heads, rows, 0))

    def _by_heads(self, op: GraphBuilder, x: ir.Value) -> ir.Value:
        """[B, M, N / M * S, …] as [B, N, S, …]."""
        q_heads, kv_heads = self.heads
        return x if q_heads == kv_heads else op.Reshape(x, op.shape(0, q_heads, op.dim(self.q, 2), 0))


def transposed(op: GraphBuilder, x: ir.Value) -> ir.Value:
    """[B, N, S, D] as [B, N, D, S]."""
    return op.Transpose(x, perm=[0, 1, 3, 2])


def split_heads(op: GraphBuilder, x: ir.Value, heads: int) -> ir.Value:
    """[B, S, N * D] as [B, N, S, D]."""
    width = op.dim(x, 2)
    size = width // heads if isinstance(width, int) else -1
    return op.Transpose(op.Reshape(x, [0, 0, heads, size]), perm=[0, 2, 1, 3])


def usual_scale(op: GraphBuilder, q: ir.Value) -> float | ir.Value:
    """1 / √D for queries [B, N, S, D]."""
    size = op.dim(q, 3)
    return 1 / math.sqrt(size) if isinstance(size, int) else op.Reciprocal(op.Sqrt(op.cast_like(size, q)))


def merged_heads(op: GraphBuilder, x: ir.Value) -> ir.Value:
    """[B, N, S, D] as [B, S, N * D]."""
    heads, size = op.dim(x, 1), op.dim(x, 3)
    width = heads * size if isinstance(heads, int) and isinstance(size, int) else -1
    return op.Reshape(op.Transpose(x, perm=[0, 2, 1, 3]), [0, 0, width])


def lowest(dtype: ir.DataType) -> float:
    """The score of masked keys: low enough for a weight of 0, and finite even if several are added."""
    return float(dtype.min) / 4


def additive_mask_where_not(op: GraphBuilder, condition: ir.Value, like: ir.Value) -> ir.Value:
    """The additive mask of the scores where ``condition`` does not hold, in the element type of ``like``."""
    return op.Where(condition, op.number(0.0, like), op.number(lowest(op.dtype(like)), like))


def causal_bias(op: GraphBuilder, like: ir.Value, queries: Size, keys: Size, offset: Size = 0) -> ir.Value:
    """The additive mask [S, T], in the type of ``like``, for query i and keys after i + ``offset``."""
    op.require_opset(14)
    after = offset + 1 if isinstance(offset, int) else op.Add(offset, [1])
    dtype = op.dtype(like)
    low = np.array([lowest(dtype)]).astype(dtype.numpy())
    filled = op.ConstantOfShape(op.shape(queries, keys), value=low)
    return op.Trilu(filled, op.scalar(after), upper=1)


def _greatest(op: GraphBuilder, x: ir.Value) -> ir.Value:
    """The maximum along the last axis, which is kept with size 1."""
    if op.version >= 18:
        return op.ReduceMax(x, [-1], keepdims=1)
    return op.ReduceMax(x, axes=[-1], keepdims=1)


#: The end of an axis, for Slice.
_END = np.iinfo(np.int64).max
