"""The bias input of fused attention, built from the biases and masks of a pattern."""

from __future__ import annotations

import numpy as np

from graphopt import ir
from graphopt.context import Dim
from graphopt.rewrite import Builder, Match
from graphopt.rules.building_blocks.attention.dot_product_attention import Attention, equals_in_valid_runs
from graphopt.rules.building_blocks.attention.scores_and_masks import Mask, Term, tensor_of
from graphopt.rules.building_blocks.axes import unsqueeze


def bias_of(op: Builder, m: Match, found: Attention) -> ir.Value | None:
    """All biases and masks as one bias [B or 1, N or 1, S, T]; ``None`` without biases and masks."""
    if not found.terms:
        return None
    total: ir.Value | None = None
    lengths: tuple[Dim, Dim] = (1, 1)
    for term in reversed(found.terms):  # in order of application: a mask overrides the terms before it
        total, lengths = _add_term(op, m, total, term), _broadcast(lengths, _lengths(m, tensor_of(term)))
    assert total is not None
    first_term = tensor_of(found.terms[0])
    queries, keys = found.score_shape[2:]
    if not equals_in_valid_runs(m, lengths[1], keys):
        m.refuse("the mask is broadcast over keys", first_term, hint=f"expand its last axis to {keys}")
    rank = max(m.rank(tensor_of(term)) or 0 for term in found.terms)
    missing = [1] if found.merged and rank == 3 else list(range(4 - rank))
    whole = unsqueeze(op, m, total, missing)
    return whole if equals_in_valid_runs(m, lengths[0], queries) else _for_each_query(op, m, whole, found)


def _lengths(m: Match, value: ir.Value) -> tuple[Dim, Dim]:
    """The sizes of ``value`` along queries and keys, 1 where it broadcasts."""
    _, _, queries, keys = (1, 1, 1, 1, *(m.shape(value) or ()))[-4:]
    return queries, keys


def _broadcast(a: tuple[Dim, Dim], b: tuple[Dim, Dim]) -> tuple[Dim, Dim]:
    """The sizes of two broadcast tensors."""
    return (b[0] if a[0] == 1 else a[0], b[1] if a[1] == 1 else a[1])


def _add_term(op: Builder, m: Match, total: ir.Value | None, term: Term) -> ir.Value:
    """The bias ``total`` followed by ``term``."""
    if not isinstance(term, Mask):
        return term if total is None else op.Add(total, term)
    dtype = m.dtype(term.kept)
    assert dtype is not None
    low = np.array(term.low, dtype.numpy())
    rest = np.array(0, dtype.numpy()) if total is None else total
    return op.Where(term.condition, *((rest, low) if term.keeps else (low, rest)))


def _for_each_query(op: Builder, m: Match, bias: ir.Value, found: Attention) -> ir.Value:
    """Expand a bias [B or 1, N or 1, 1, T] to [B or 1, N or 1, S, T]."""
    queries = found.score_shape[2]
    if isinstance(queries, int):
        return op.Expand(bias, np.array([1, 1, queries, 1]))
    source, axis = _queries(found)
    length = op.Gather(op.Shape(source), np.array([axis]))
    return op.Expand(bias, op.Concat(np.array([1, 1]), length, np.array([1]), axis=0))


def _queries(found: Attention) -> tuple[ir.Value, int]:
    """A tensor with an axis of queries, and that axis."""
    q = found.q
    if q.rows is not None:
        return q.rows.source, 0 if q.rows.time_first else 1
    if q.flat is not None:
        return q.flat, 1
    assert q.split is not None
    return q.split, 2
