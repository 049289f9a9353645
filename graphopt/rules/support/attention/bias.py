"""What fused attention is given to add to its scores."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphopt import ir
from graphopt.context import Dim, Refusal
from graphopt.rewrite import Match
from graphopt.rewrite.builder import Builder
from graphopt.rules.support.attention.pattern import Attention, is_along
from graphopt.rules.support.attention.scores import Mask, Term, told_of
from graphopt.rules.support.axes import unsqueeze


def bias_of(op: Builder, m: Match, found: Attention) -> ir.Value | Refusal | None:
    """All that is done to the scores, as one [B or 1, N or 1, S, T] to add; ``None`` if nothing is."""
    if not found.terms:
        return None
    total: ir.Value | None = None
    places: tuple[Dim, Dim] = (1, 1)
    for term in reversed(found.terms):  # in turn: of what a mask hides nothing else counts
        total, places = _with(op, m, total, term), _joined(places, _places(m, told_of(term)))
    assert total is not None
    told = told_of(found.terms[0])
    queries, keys = found.score_shape[2:]
    if not is_along(m, places[1], keys):
        return m.no("the mask is broadcast over keys", told, hint=f"expand its last axis to {keys}")
    rank = max(m.rank(told_of(term)) or 0 for term in found.terms)
    missing = [1] if found.merged and rank == 3 else list(range(4 - rank))
    whole = unsqueeze(op, m, total, missing)
    return whole if is_along(m, places[0], queries) else _for_each_query(op, m, whole, found)


def _places(m: Match, value: ir.Value) -> tuple[Dim, Dim]:
    """For how many queries and keys ``value`` has numbers of their own."""
    _, _, queries, keys = (1, 1, 1, 1, *(m.shape(value) or ()))[-4:]
    return queries, keys


def _joined(a: tuple[Dim, Dim], b: tuple[Dim, Dim]) -> tuple[Dim, Dim]:
    """What two that broadcast to the same have."""
    return (b[0] if a[0] == 1 else a[0], b[1] if a[1] == 1 else a[1])


def _with(op: Builder, m: Match, total: ir.Value | None, term: Term) -> ir.Value:
    """``total``, what is added to the scores, and ``term`` after it."""
    if not isinstance(term, Mask):
        return term if total is None else _value(op.Add(total, term))
    dtype = m.dtype(term.kept)
    assert dtype is not None
    low = np.array(term.low, dtype.numpy())
    rest = np.array(0, dtype.numpy()) if total is None else total
    return _value(op.Where(term.condition, *((rest, low) if term.keeps else (low, rest))))


def _value(made: Any) -> ir.Value:
    assert isinstance(made, ir.Value)
    return made


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
