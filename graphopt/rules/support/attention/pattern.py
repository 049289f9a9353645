"""Scaled dot-product attention for each head: softmax(scores) @ v, where the shapes of all parts fit.

Heads are told by shapes, so it does not matter which exporter wrote them. Sizes below: B batches,
N heads, S queries, T keys, D elements of a head.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from graphopt import ir
from graphopt.analysis import symbolic
from graphopt.analysis.symbolic import Extremum
from graphopt.context import Dim, Refusal
from graphopt.rewrite import Match
from graphopt.rules.support.attention.causal import step_of
from graphopt.rules.support.attention.heads import Heads, heads_of, parted, same
from graphopt.rules.support.attention.magnitude import largest
from graphopt.rules.support.attention.scores import (
    MINUS_INFINITY,
    Mask,
    Scores,
    Term,
    scores_of,
    told_of,
    unscaled,
)
from graphopt.rules.support.axes import axis_of
from graphopt.rules.support.operands import WIDENED, same_shape

#: How large numbers are that what hides keys hides them from, beside what they are hidden by.
_BESIDE = 1e-3
#: The lowest number of kernels that hide keys by themselves, which is a finite one.
_LOWEST = float(np.finfo(np.float32).min)


@dataclass(frozen=True)
class Attention:
    """Attention that is found.

    Attributes:
        q, k, v: by heads.
        merged: heads are batches: what is given has no axis for them.
        causal: there are as many keys as queries, and each query sees those up to its own.
        terms: what else hides keys, or adds to the scores, last first.
        guarded: where no key is attended to, the result is 0 and not NaN.
        upcast: the softmax is computed in float32, whatever the type.
    """

    q: Heads
    k: Heads
    v: Heads
    scale: float
    causal: bool = False
    terms: tuple[Term, ...] = ()
    guarded: bool = False
    upcast: bool = False
    merged: bool = False

    @property
    def biases(self) -> tuple[ir.Value, ...]:
        """What is added to the scores."""
        return tuple(term for term in self.terms if not isinstance(term, Mask))

    @property
    def masks(self) -> tuple[Mask, ...]:
        """What chooses between scores and a low number."""
        return tuple(term for term in self.terms if isinstance(term, Mask))

    @property
    def score_shape(self) -> tuple[Dim, ...]:
        """[B, N, S, T]."""
        batch, heads, queries, _ = self.q.shape
        return (batch, heads, queries, self.k.shape[2])

    @property
    def shape(self) -> tuple[Dim, ...]:
        """[B, N, S, size of values]; N is 1 where heads are batches."""
        return (*self.q.shape[:3], self.v.shape[3])


def attention_of(m: Match, s: ir.Value, v: ir.Value, *, guarded: bool, upcast: bool) -> Attention | Refusal:
    """The attention whose softmax is taken of ``s``, with values ``v``; or what stands in the way."""
    parts = m.root.op_type == "Reshape"
    scores = scores_of(m, s, parts=parts)
    if isinstance(scores, Refusal):
        return scores
    if parts:
        whole = parted(m, v)
        if whole is None:
            return m.no("values are not merged batches and heads", v)
        v = whole
    q = heads_of(m, scores.q)
    k = heads_of(m, scores.k, transposed=scores.k_turned)
    values = heads_of(m, v)
    (q, of_q), (k, of_k) = _unscaled_heads(m, q), _unscaled_heads(m, k)
    if q is None or k is None or values is None:
        return m.no("queries, keys or values are not [batch, heads, length, size]", v)
    rank = m.rank(scores.q)
    if rank is None or rank != m.rank(scores.k) or rank != m.rank(v):
        return m.no("queries, keys or values are not [batch, heads, length, size]", v)
    softmax = m.node("softmax")
    last = m.rank(softmax.outputs[0])
    if last is None or axis_of(m, softmax, last, -1) != last - 1:
        return m.no("the softmax is not taken over keys", s)
    (batch, heads, _, size), (_, _, keys, value_size) = q.shape, values.shape
    if not isinstance(heads, int) or not isinstance(size, int) or not isinstance(value_size, int):
        return m.no("the number of heads or their size is unknown", v)
    if not same_shape(m, k.shape, (batch, heads, keys, size)) or not same_shape(
        m, values.shape[:2], (batch, heads)
    ):
        return m.no("keys and values differ from queries in batch, heads or length", v)
    found = Attention(
        q, k, values, scores.scale * of_q * of_k, guarded=guarded, upcast=upcast, merged=rank == 3
    )
    for term in scores.terms:
        if (refusal := _unfit(m, told_of(term), without_heads(found, found.score_shape))) is not None:
            return refusal
    given, wanted = m.shape(m.root.outputs[0]), without_heads(found, found.shape)
    if (
        given is None
        or len(given) != len(wanted)
        or not all(same(m, *pair) for pair in zip(given, wanted, strict=True))
    ):
        return m.no(WIDENED, s)
    return _masked(m, found, scores)


def without_heads(found: Attention, shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """``shape`` as it is given, where heads are batches."""
    return (shape[0], *shape[2:]) if found.merged else shape


def _unfit(m: Match, mask: ir.Value, wanted: tuple[Dim, ...]) -> Refusal | None:
    """Why ``mask`` can't be added to scores of the shape that is wanted."""
    shape = m.shape(mask)
    if shape is None or len(shape) > len(wanted):
        return m.no("the mask has more axes than the scores", mask)
    for dim, size in zip(shape[::-1], wanted[::-1], strict=False):
        if dim != 1 and not is_along(m, dim, size):
            named = symbolic.declared_name(dim) and symbolic.declared_name(size)
            hint = (
                f"declare dims {dim} and {size} of the inputs by one name, if they are equal"
                if named
                else None
            )
            return m.no("the mask does not broadcast to batches, heads, queries and keys", mask, hint=hint)
    return None


def _masked(m: Match, found: Attention, scores: Scores) -> Attention:
    """``found`` with what is done to its scores, of which one term may be a causal mask.

    Where another term may hide keys, too, a causal mask stays a term: of a query from which all are hidden,
    the lower number decides what is left, and kernels that are told of causality have one of their own.
    """
    lows = [_causal_low(m, found, term) for term in scores.terms]
    causal = [low for low in lows if low is not None]
    others = tuple(term for term, low in zip(scores.terms, lows, strict=True) if low is None)
    sizes = [abs(term.low) if isinstance(term, Mask) else largest(m, term) for term in others]
    if not causal or not sum(sizes) <= _BESIDE * -max(*causal, _LOWEST):
        return replace(found, terms=scores.terms)
    return replace(found, causal=True, terms=others)


def _causal_low(m: Match, found: Attention, term: Term) -> float | None:
    """The number by which ``term`` hides the keys after each query's own, if that is all that it does."""
    told = told_of(term)
    step, shape, (queries, keys) = step_of(m, told), m.shape(told) or (), found.score_shape[2:]
    if step is None or step.offset is None or not m.cx.facts.dim_equal(step.offset, 0):
        return None
    if not m.cx.facts.dim_equal(queries, keys) or len(shape) < 2:
        return None
    if not is_along(m, shape[-2], queries) or not is_along(m, shape[-1], keys):
        return None
    if isinstance(term, Mask):
        return term.low if bool(step.near) == term.keeps != bool(step.far) else None
    return float(step.far) if step.near == 0 and step.far <= MINUS_INFINITY else None


def is_along(m: Match, dim: Dim, size: Dim) -> bool:
    """Whether an axis of a mask, of ``dim`` elements, is as long as what it is added to wherever that works.

    It is where it is cut to ``size``, and so is shorter only where the mask has not as many.
    """
    if m.cx.facts.dim_equal(dim, size):
        return True
    atom = symbolic.lone_atom(dim)
    if not isinstance(atom, Extremum) or atom.sign != -1:
        return False
    others = [arg for arg in atom.args if not m.cx.facts.dim_equal(arg, size)]
    return len(others) < len(atom.args) and all(isinstance(arg, int) and arg > 1 for arg in others)


def _unscaled_heads(m: Match, heads: Heads | None) -> tuple[Heads | None, float]:
    """``heads`` without factors from before they were transposed."""
    if heads is None or heads.has_rows or heads.split is None:
        return heads, 1.0
    value, scale = unscaled(m, heads.split)
    return (heads, 1.0) if scale == 1.0 else (heads_of(m, value), scale)
