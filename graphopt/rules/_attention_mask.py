"""What fused attention is given to add to its scores."""

from __future__ import annotations

import numpy as np

from graphopt import ir
from graphopt.context import Dim, Refusal
from graphopt.rewrite import Match
from graphopt.rewrite.builder import Builder
from graphopt.rules import _forms as forms
from graphopt.rules._attention_core import Attention, Mask, is_along


def bias_of(op: Builder, m: Match, found: Attention) -> ir.Value | Refusal | None:
    """All that is added to the scores, as one [B or 1, N or 1, S, T]; ``None`` if nothing is."""
    terms = [(bias, bias) for bias in found.biases]
    terms += [(mask.condition, _numbers(op, m, mask)) for mask in found.masks]
    if not terms:
        return None
    total, shape = terms[0][1], _full(m, found, terms[0][0])
    for told, bias in terms[1:]:
        total, shape = op.Add(total, bias), _joined(shape, _full(m, found, told))
    told = terms[0][0]
    queries, keys = found.score_shape[2:]
    if not is_along(m, shape[3], keys):
        return m.no("the mask is the same for all keys", told, hint=f"expand its last axis to {keys}")
    rank = max(m.rank(told) or 0 for told, _ in terms)
    missing = [1] if found.merged and rank == 3 else list(range(4 - rank))
    whole = forms.unsqueeze(op, m, total, missing)
    return whole if is_along(m, shape[2], queries) else _for_each_query(op, m, whole, found)


def _full(m: Match, found: Attention, value: ir.Value) -> tuple[Dim, ...]:
    """The shape of ``value`` with axes of size 1 in front, or for the heads, four in all."""
    shape = m.shape(value)
    assert shape is not None
    if found.merged and len(shape) == 3:
        return (shape[0], 1, *shape[1:])
    return (1,) * (4 - len(shape)) + shape


def _joined(a: tuple[Dim, ...], b: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """The shape to which two that broadcast to the same are broadcast."""
    return tuple(y if x == 1 else x for x, y in zip(a, b, strict=True))


def _numbers(op: Builder, m: Match, mask: Mask) -> ir.Value:
    """0 where ``mask`` keeps the scores, and its low number elsewhere."""
    dtype = m.dtype(mask.kept)
    assert dtype is not None
    zero, low = np.array(0, dtype.numpy()), np.array(mask.low, dtype.numpy())
    result = op.Where(mask.condition, *((zero, low) if mask.keeps else (low, zero)))
    assert isinstance(result, ir.Value)
    return result


def _for_each_query(op: Builder, m: Match, bias: ir.Value, found: Attention) -> ir.Value:
    """[B or 1, N or 1, 1, T], repeated for each of the queries."""
    queries = found.score_shape[2]
    if isinstance(queries, int):
        result = op.Expand(bias, np.array([1, 1, queries, 1]))
    else:
        source, axis = _queries(found)
        one = np.array([1])
        length = op.Gather(op.Shape(source), np.array([axis]))
        result = op.Expand(bias, op.Concat(np.array([1, 1]), length, one, axis=0))
    assert isinstance(result, ir.Value)
    return result


def _queries(found: Attention) -> tuple[ir.Value, int]:
    """A tensor that has the queries along an axis, and that axis."""
    q = found.q
    if q.rows is not None:
        return q.rows.source, 0 if q.rows.time_first else 1
    if q.flat is not None:
        return q.flat, 1
    assert q.split is not None
    return q.split, 2
