"""Attention in plain operators: its weights, and its gradients.

Sizes: B batches, N heads of queries, M of keys and values, each for N / M heads of queries in a row,
S queries, T keys, D and E numbers in a head.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from graphopt import ir
from graphopt.autodiff.builder import GraphBuilder, Size


class AttentionGradients(NamedTuple):
    """What flows back into queries, keys and values, shaped as they are, scores, [B, N, S, T], and sinks."""

    q: ir.Value
    k: ir.Value
    v: ir.Value
    scores: ir.Value
    sinks: ir.Value | None


@dataclass
class Attention:
    """softmax(c tanh(scale q kᵀ / c) + bias) v, as Vaswani et al. (2017) and the standard define it.

    Attributes:
        q, k, v: [B, N, S, D], [B, M, T, D] and [B, M, T, E], of one type.
        heads: N and M, which are known where they differ.
        scale: of the scores.
        softcap: c; 0 for none.
        bias: what is added to scores, and broadcasts against [B, N, S, T].
        may_hide_all: the bias may hide all keys of a query, of which the result is then 0.
        sinks: [N]: a score for each head that takes part in the softmax, and nothing else.
        within: the type of the softmax; ``None`` for that of the operands.
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
        """The gradients for ``dy`` [B, N, S, E] of the result."""
        q, dy = op.Mul(self.q, self.scale), self._grouped(op, dy)
        q = self._grouped(op, q)
        scores = self._by_heads(op, op.MatMul(q, transposed(op, self.k)))
        bent = None
        if self.softcap:
            bent = op.Tanh(op.Mul(scores, 1 / self.softcap))
            scores = op.Mul(bent, self.softcap)
        weights, sunk = self._weights(op, scores)
        grouped = self._grouped(op, weights)
        dv = op.MatMul(transposed(op, grouped), dy)
        dweights = op.Mul(self._by_heads(op, op.MatMul(dy, transposed(op, self.v))), weights)
        mean = op.ReduceSum(dweights, [-1], keepdims=1)
        dadded = op.Sub(dweights, op.Mul(weights, mean))
        dsinks = None
        if sunk is not None:
            dsinks = op.Neg(op.ReduceSum(op.Mul(sunk, mean), [0, 2, 3], keepdims=0))
        dscores = dadded if bent is None else op.Mul(dadded, op.Sub(1.0, op.Mul(bent, bent)))
        dscores = self._grouped(op, dscores)
        dq = op.Mul(op.MatMul(dscores, self.k), self.scale)
        dk = op.MatMul(transposed(op, dscores), q)
        return AttentionGradients(self._by_heads(op, dq), dk, dv, dadded, dsinks)

    def _weights(self, op: GraphBuilder, scores: ir.Value) -> tuple[ir.Value, ir.Value | None]:
        """The weights of keys, [B, N, S, T], and those of sinks, [B, N, S, 1]."""
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
        sunk = None
        if self.sinks is not None:
            first = op.Slice(scores, [0], [1], [-1])
            column = op.expand_like(op.cast_like(op.Reshape(self.sinks, [1, -1, 1, 1]), scores), first)
            all_weights = op.Softmax(op.Concat(scores, column, axis=-1), axis=-1)
            weights, sunk = op.Slice(all_weights, [0], [-1], [-1]), op.Slice(all_weights, [-1], [_END], [-1])
            sunk = op.cast(sunk, dtype)
        else:
            weights = op.Softmax(scores, axis=-1)
        weights = op.cast(weights, dtype)
        return weights if dead is None else op.Where(dead, op.number(0.0, weights), weights), sunk

    def _grouped(self, op: GraphBuilder, x: ir.Value) -> ir.Value:
        """[B, N, S, …] as [B, M, N / M * S, …]: queries that share keys side by side."""
        many, few = self.heads
        if many == few or not isinstance(many, int) or not isinstance(few, int):
            return x
        queries, share = op.dim(self.q, 2), many // few
        rows = queries * share if isinstance(queries, int) else op.Mul(queries, [share])
        return op.Reshape(x, op.shape(0, few, rows, 0))

    def _by_heads(self, op: GraphBuilder, x: ir.Value) -> ir.Value:
        """[B, M, N / M * S, …] as [B, N, S, …]."""
        many, few = self.heads
        return x if many == few else op.Reshape(x, op.shape(0, many, op.dim(self.q, 2), 0))


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
    """What to add to scores that are hidden: so low that no weight is left, and finite when summed up."""
    return float(dtype.min) / 4


def hidden_where_not(op: GraphBuilder, condition: ir.Value, like: ir.Value) -> ir.Value:
    """What to add to scores, of the type of ``like``, that are hidden where ``condition`` does not hold."""
    return op.Where(condition, op.number(0.0, like), op.number(lowest(op.dtype(like)), like))


def causal_bias(op: GraphBuilder, like: ir.Value, queries: Size, keys: Size, offset: Size = 0) -> ir.Value:
    """[S, T], of the type of ``like``, to add to scores: query i sees no key after i + ``offset``."""
    op.needs(14)
    after = offset + 1 if isinstance(offset, int) else op.Add(offset, [1])
    dtype = op.dtype(like)
    low = np.array([lowest(dtype)]).astype(dtype.numpy())
    filled = op.ConstantOfShape(op.shape(queries, keys), value=low)
    place = op.constant(np.int64(after)) if isinstance(after, int) else op.Squeeze(after, [0])
    return op.Trilu(filled, place, upper=1)


def counted(op: GraphBuilder, size: Size) -> ir.Value:
    """0, 1, … up to ``size``, int64."""
    if isinstance(size, int):
        return op.constant(np.arange(size))
    zero, one = op.constant(np.int64(0)), op.constant(np.int64(1))
    return op.Range(zero, op.Squeeze(size, [0]), one)


def _greatest(op: GraphBuilder, x: ir.Value) -> ir.Value:
    """The greatest numbers along the last axis, which is kept."""
    if op.version >= 18:
        return op.ReduceMax(x, [-1], keepdims=1)
    return op.ReduceMax(x, axes=[-1], keepdims=1)


#: A place after all others.
_END = np.iinfo(np.int64).max
