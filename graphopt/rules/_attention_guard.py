"""Attention that gives 0, and not NaN, to a query that attends to nothing, as torch's does.

The models take the NaN out of the weights; of the fused operator only the result is there.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from graphopt import ir
from graphopt.ops import facts
from graphopt.rewrite import Match
from graphopt.rewrite.builder import Builder
from graphopt.rules import _forms as forms
from graphopt.rules._attention_core import Attention

#: Nodes that are followed from a mask to the numbers that it is made of.
_FAR = 12
#: Operators whose results are among the elements of their first input.
_PICKS = facts.VIEW | {"Expand", "Slice", "Gather", "GatherElements", "GatherND", "Transpose", "Trilu", "Neg"}
_BOUNDED = frozenset({"Softmax", "Sigmoid", "Tanh"})
_COMBINED: dict[str, Callable[[list[float]], float]] = {
    "Where": max,
    "Max": max,
    "Min": max,
    "Add": sum,
    "Sub": sum,
    "Mul": math.prod,
}


def without_nan(op: Builder, m: Match, found: Attention, result: ir.Value, *, rows: bool) -> ir.Value:
    """``result``, in which NaN becomes what weights of 0 give, if the weights were cleared of NaN.

    Args:
        rows: it is [B, S, N * D], not [B, N, S, D].
    """
    if not found.guarded:
        return result
    dtype = m.dtype(result) or m.dtype(found.q.as_given)
    assert dtype is not None
    zero = np.array(0, dtype.numpy())
    if _takes_floats(m):  # perhaps NaN and infinities, of which 0 times a value makes NaN
        values = found.v.as_rows(op, m) if rows else found.v.as_split(op, m)
        nothing = forms.reduce(op, m, "ReduceSum", op.Mul(values, zero), [1 if rows else 2], True)
    elif may_hide_all(m, found):
        nothing = op.constant(zero)
    else:
        return result
    guarded = op.Where(op.IsNaN(result), nothing, result)
    assert isinstance(guarded, ir.Value)
    return guarded


def _takes_floats(m: Match) -> bool:
    """Whether the model is handed floats, or it is not known what it is handed."""
    dtypes = [m.dtype(value) for value in m.cx.model.graph.inputs]
    return any(dtype is None or dtype.is_floating_point() for dtype in dtypes)


def may_hide_all(m: Match, found: Attention) -> bool:
    """Whether no key may be left to some query, all its scores being minus infinity."""
    if any(math.isinf(mask.low) for mask in found.masks):
        return True
    total = sum((_largest(m, bias, _FAR) for bias in found.biases), sum(-mask.low for mask in found.masks))
    return not total < float(np.finfo(np.float32).max) * (1 + 1e-6)


def _largest(m: Match, value: ir.Value | None, far: int) -> float:
    """What no element of ``value`` exceeds in size; infinity where nothing is known."""
    array = m.constant(value)
    if array is not None:
        numbers = np.abs(array.astype(np.float64))
        return float(np.max(np.nan_to_num(numbers, nan=math.inf, posinf=math.inf), initial=0.0))
    node = None if value is None else value.producer()
    if value is None or node is None or node.domain or far == 0:
        return math.inf
    before = [None if x is None else m.dtype(x) for x in node.inputs]
    if node.op_type == "Cast" and before[0] == ir.DataType.BOOL:
        return 1.0
    if node.op_type in _PICKS or node.op_type == "Cast":
        return _largest(m, node.inputs[0], far - 1)
    if node.op_type in _BOUNDED:
        return 1.0
    if node.op_type not in _COMBINED:
        return math.inf
    operands = node.inputs[1:] if node.op_type == "Where" else node.inputs
    sizes = [_largest(m, x, far - 1) for x in operands]
    return _COMBINED[node.op_type](sizes)
