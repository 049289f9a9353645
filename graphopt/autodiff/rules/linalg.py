"""Determinants."""

from __future__ import annotations

import numpy as np

from graphopt import ir
from graphopt.autodiff.builder import GraphBuilder
from graphopt.autodiff.primal import PrimalNode
from graphopt.autodiff.registry import Cotangents, gradient


@gradient("Det")
def det(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """dy times the cofactors, the determinants without one row and column; exact for singular matrices."""
    x = node.x
    rank = node.rank(x)
    size = op.dim(x, rank - 1)
    if isinstance(size, int):
        rows, places = np.arange(size)[:, None], np.arange(max(size - 1, 0))
        rest = op.constant(np.asarray(places + (places >= rows), np.int64))
        signs = op.constant(np.asarray((-1.0) ** (rows + rows.T)).astype(op.dtype(x).numpy()))
    else:
        zero, one = op.constant(np.int64(0)), op.constant(np.int64(1))
        count = op.Squeeze(size)
        row = op.Range(zero, count, one)
        place = op.Range(zero, op.Sub(count, one), one)
        column = op.Unsqueeze(row, [1])
        rest = op.Add(place, op.Cast(op.GreaterOrEqual(place, column), to=ir.DataType.INT64))
        odd = op.cast_like(op.Mod(op.Add(row, column), op.constant(np.int64(2))), x)
        signs = op.Sub(1.0, op.Mul(odd, 2.0))
    kept_rows = op.Gather(x, rest, axis=rank - 2)  # (..., n, n - 1, n)
    both = op.Gather(kept_rows, rest, axis=rank)  # (..., n, n - 1, n, n - 1)
    lead = list(range(rank - 2))
    minors = op.Det(op.Transpose(both, perm=[*lead, rank - 2, rank, rank - 1, rank + 1]))
    scalars = op.Unsqueeze(dy, [rank - 2, rank - 1])
    return op.Mul(op.Mul(minors, signs), scalars)
