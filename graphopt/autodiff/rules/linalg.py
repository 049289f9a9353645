"""Determinants, inverses and distances."""

from __future__ import annotations

import numpy as np

from graphopt import ir
from graphopt.autodiff.graph_builder import GraphBuilder
from graphopt.autodiff.primal_node import PrimalNode
from graphopt.autodiff.rule_registry import Cotangents, gradient


@gradient("Det")
def det(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """dy times the cofactors, the determinants without one row and column; exact for singular matrices."""
    x = node.x
    rank = node.rank(x)
    size = op.dim(x, rank - 1)
    if isinstance(size, int):
        rows, positions = np.arange(size)[:, None], np.arange(max(size - 1, 0))
        rest = op.constant(np.asarray(positions + (positions >= rows), np.int64))
        signs = op.constant(np.asarray((-1.0) ** (rows + rows.T)).astype(op.dtype(x).numpy()))
    else:
        zero, one = op.constant(np.int64(0)), op.constant(np.int64(1))
        count = op.Squeeze(size)
        row = op.Range(zero, count, one)
        position = op.Range(zero, op.Sub(count, one), one)
        column = op.Unsqueeze(row, [1])
        rest = op.Add(position, op.Cast(op.GreaterOrEqual(position, column), to=ir.DataType.INT64))
        odd = op.cast_like(op.Mod(op.Add(row, column), op.constant(np.int64(2))), x)
        signs = op.Sub(1.0, op.Mul(odd, 2.0))
    kept_rows = op.Gather(x, rest, axis=rank - 2)  # (..., n, n - 1, n)
    both = op.Gather(kept_rows, rest, axis=rank)  # (..., n, n - 1, n, n - 1)
    lead = list(range(rank - 2))
    minors = op.Det(op.Transpose(both, perm=[*lead, rank - 2, rank, rank - 1, rank + 1]))
    scalars = op.Unsqueeze(dy, [rank - 2, rank - 1])
    return op.Mul(op.Mul(minors, signs), scalars)


@gradient("com.microsoft::Inverse")
def inverse(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """-yᵀ dy yᵀ."""
    rank = node.rank(node.y)
    transposed = op.Transpose(node.y, perm=[*range(rank - 2), rank - 1, rank - 2])
    return op.Neg(op.MatMul(transposed, op.MatMul(dy, transposed)))


@gradient("com.microsoft::CDist")
def distances(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """2 Σ (a - b) dy; 2 Σ (b - a) dy; for the Euclidean metric, dy / 2y in place of dy."""
    metric = node.attribute("metric", "sqeuclidean")
    if metric not in ("sqeuclidean", "euclidean"):
        raise node.refusal(f"its metric is {metric}")
    a, b = node.x, node.input(1)
    if metric == "euclidean":
        dy = op.only_where(op.Greater(node.y, 0.0), op.Div(op.Mul(dy, 0.5), node.y))
    twice = op.Mul(dy, 2.0)
    to_a = op.Sub(op.Mul(a, op.ReduceSum(twice, [1], keepdims=1)), op.MatMul(twice, b))
    to_b = op.Mul(b, op.Transpose(op.ReduceSum(twice, [0], keepdims=1), perm=[1, 0]))
    return to_a, op.Sub(to_b, op.Gemm(twice, a, transA=1))
