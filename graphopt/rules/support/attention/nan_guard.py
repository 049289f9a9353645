"""Attention that gives 0, and not NaN, to a query that attends to nothing, as torch's does.

The models take the NaN out of the weights; of the fused operator only the result is there.
"""

from __future__ import annotations

import numpy as np

from graphopt import ir
from graphopt.rewrite import Match
from graphopt.rewrite.builder import Builder
from graphopt.rules.support.attention.magnitude import largest
from graphopt.rules.support.attention.pattern import Attention
from graphopt.rules.support.axes import reduce


def without_nan(op: Builder, m: Match, found: Attention, result: ir.Value, *, rows: bool) -> ir.Value:
    """``result``, in which NaN becomes what weights of 0 give, if the weights were cleared of NaN.

    Args:
        rows: it is [B, S, N * D], not [B, N, S, D].
    """
    if not found.guarded:
        return result
    dtype = m.dtype(found.q.as_given)
    assert dtype is not None
    zero = np.array(0, dtype.numpy())
    if takes_floats(m):  # perhaps NaN and infinities, of which 0 times a value makes NaN
        values = found.v.as_rows(op, m) if rows else found.v.as_split(op, m)
        nothing = reduce(op, m, "ReduceSum", op.Mul(values, zero), [1 if rows else 2], True)
    elif may_hide_all(m, found):
        nothing = op.constant(zero)
    else:
        return result
    guarded = op.Where(op.IsNaN(result), nothing, result)
    assert isinstance(guarded, ir.Value)
    return guarded


def takes_floats(m: Match) -> bool:
    """Whether the model is handed floats, or it is not known what it is handed."""
    dtypes = [m.dtype(value) for value in m.cx.model.graph.inputs]
    return any(dtype is None or dtype.is_floating_point() for dtype in dtypes)


def may_hide_all(m: Match, found: Attention) -> bool:
    """Whether no key may be left to some query, all its scores being minus infinity."""
    total = sum((largest(m, bias) for bias in found.biases), sum(-mask.low for mask in found.masks))
    return not total < float(np.finfo(np.float32).max) * (1 + 1e-6)
