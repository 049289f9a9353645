"""Attention whose result is 0, not NaN, for queries whose keys are all masked, as in PyTorch.

Such models replace NaN in the softmax weights. If the operator is fused, only its result can be corrected.
"""

from __future__ import annotations

import numpy as np

from graphopt import ir
from graphopt.rewrite import Builder, Match
from graphopt.rules.building_blocks.attention.dot_product_attention import Attention
from graphopt.rules.building_blocks.attention.mask_magnitude import max_magnitude
from graphopt.rules.building_blocks.axes import reduce
from graphopt.rules.building_blocks.reshape_targets import reshape


def guard_nan(op: Builder, m: Match, found: Attention, result: ir.Value, *, rows: bool) -> ir.Value:
    """``result`` with NaN replaced by the result of zero weights, if the pattern replaces NaN in its weights.

    Args:
        rows: whether ``result`` is [B, S, N * D], not [B, N, S, D].
    """
    if not found.guarded:
        return result
    dtype = m.dtype(found.v.tensor)
    assert dtype is not None
    zero = np.array(0, dtype.numpy())
    if has_float_inputs(m):  # values may be NaN or infinite: 0 times such a value is NaN
        nothing = _of_zero_weights(op, m, found, zero, rows=rows)
    elif may_mask_all_keys(m, found):
        nothing = op.constant(zero)
    else:
        return result
    guarded = op.Where(op.IsNaN(result), nothing, result)
    assert isinstance(guarded, ir.Value)
    return guarded


def _of_zero_weights(op: Builder, m: Match, found: Attention, zero: np.ndarray, *, rows: bool) -> ir.Value:
    """The result for zero weights: 0, or NaN where a value is not finite; with one query."""
    if rows and found.v.has_rows and found.v.shared is None:
        return reduce(op, m, "ReduceSum", op.Mul(found.v.as_rows(op, m), zero), [1], True)
    values = found.v.shared or found.v
    (_, heads, _, size), shared = found.v.shape, values.shape[1]
    assert isinstance(heads, int) and isinstance(size, int) and isinstance(shared, int)
    nothing = reduce(op, m, "ReduceSum", op.Mul(values.as_split(op, m), zero), [2], True)
    if heads > shared:
        nothing = op.Expand(nothing, np.array([1, 1, heads // shared, 1]))
    if rows:
        return reshape(op, m, nothing, [0, 1, heads * size])
    return nothing if heads == shared else reshape(op, m, nothing, [0, heads, 1, size])


def has_float_inputs(m: Match) -> bool:
    """Whether an input of the model is of a floating-point or unknown type."""
    dtypes = [m.dtype(value) for value in m.cx.model.graph.inputs]
    return any(dtype is None or dtype.is_floating_point() for dtype in dtypes)


def may_mask_all_keys(m: Match, found: Attention) -> bool:
    """Whether all scores of a query may be minus infinity."""
    total = sum((max_magnitude(m, bias) for bias in found.biases), sum(-mask.low for mask in found.masks))
    return not total < float(np.finfo(np.float32).max) * (1 + 1e-6)
