"""Attention that gives 0, and not NaN, to a query that attends to nothing, as torch's does.

The models take the NaN out of the weights; of the fused operator only the result is there.
"""

from __future__ import annotations

import math

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
_PICKS = facts.VIEW | {"Expand", "Slice", "Gather", "GatherElements", "GatherND", "Transpose", "Trilu"}


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
    return any(math.isinf(mask.low) for mask in found.masks) or not all(
        _is_finite(m, bias) for bias in found.biases
    )


def _is_finite(m: Match, value: ir.Value) -> bool:
    """Whether ``value`` is made of finite numbers alone, by nothing that makes other numbers of them."""
    pending: list[ir.Value | None] = [value]
    for _ in range(_FAR):
        if not pending:
            return True
        current = pending.pop()
        array = m.constant(current)
        if array is not None:
            if array.dtype.kind != "b" and not np.all(np.isfinite(array.astype(np.float64))):
                return False
            continue
        node = None if current is None else current.producer()
        if current is None or node is None or node.domain:
            return False
        if node.op_type in _PICKS:
            pending.append(node.inputs[0])
        elif node.op_type == "Where":
            pending += node.inputs[1:]
        elif node.op_type in ("Add", "Sub", "Mul", "Neg"):
            pending += node.inputs
        elif node.op_type == "Cast" and node.inputs[0] is not None:
            before = m.dtype(node.inputs[0])
            if before is None or not (before == ir.DataType.BOOL or before.is_integer()):
                pending.append(node.inputs[0])
        elif node.op_type not in ("ConstantOfShape", "Softmax", "Sigmoid", "Tanh"):
            return False
    return not pending
