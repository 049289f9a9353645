"""Scaled dot-product attention per head: softmax(scores) @ v, if the shapes of all operands match.

Heads are recognized by shapes, independent of the exporter. Sizes below: B batches, N heads, S queries,
T keys, D elements of a head.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from graphopt import ir
from graphopt.analysis import symbolic
from graphopt.analysis.symbolic import Minimum
from graphopt.context import Dim
from graphopt.rewrite import Match
from graphopt.rules.building_blocks.attention.causal_masks import step_of
from graphopt.rules.building_blocks.attention.heads import Heads, heads_of, same_dim, unmerged
from graphopt.rules.building_blocks.attention.mask_magnitude import max_magnitude
from graphopt.rules.building_blocks.attention.scores_and_masks import (
    HALVES,
    MINUS_INFINITY,
    Mask,
    Scores,
    Term,
    scores_of,
    tensor_of,
    unscaled,
)
from graphopt.rules.building_blocks.axes import axis_of
from graphopt.rules.building_blocks.dim_options import relation_hint
from graphopt.rules.building_blocks.operands import producer_of
from graphopt.rules.building_blocks.shape_equality import WIDENED, same_shape
from graphopt.util.lazy_dataclass import dataclass

#: Maximum magnitude of the other scores, relative to the mask constant, for which the constant dominates.
_MASK_DOMINANCE = 1e-3
#: The mask constant of kernels with a causal flag: the lowest finite float.
_KERNEL_MASK_VALUE = float(np.finfo(np.float32).min)


@dataclass(frozen=True)
class Attention:
    """A match of the attention pattern.

    Attributes:
        q, k, v: by heads.
        merged: whether batches and heads share one axis of the operands.
        causal: whether the numbers of keys and queries are equal, and each query attends to the keys up to
            its position.
        terms: other masks and biases of the scores, last first.
        guarded: whether the result is 0, not NaN, for queries whose keys are all masked.
        upcast: whether the softmax is computed in float32 for a narrower type.
        narrowed: the type of the result and of the existing values if the rest is computed in float.
        softcap: the number c if scores x are replaced by ``c * tanh(x / c)`` before the terms; 0 for none.
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
    softcap: float = 0.0
    narrowed: ir.DataType | None = None

    @property
    def biases(self) -> tuple[ir.Value, ...]:
        """The terms that are added to the scores."""
        return tuple(term for term in self.terms if not isinstance(term, Mask))

    @property
    def masks(self) -> tuple[Mask, ...]:
        """The terms that replace scores by a mask constant."""
        return tuple(term for term in self.terms if isinstance(term, Mask))

    @property
    def score_shape(self) -> tuple[Dim, ...]:
        """[B, N, S, T]."""
        batch, heads, queries, _ = self.q.shape
        return (batch, heads, queries, self.k.shape[2])

    @property
    def shape(self) -> tuple[Dim, ...]:
        """[B, N, S, size of values]; N is 1 if batches and heads are merged."""
        return (*self.q.shape[:3], self.v.shape[3])


def attention_of(
    m: Match,
    s: ir.Value,
    v: ir.Value,
    *,
    guarded: bool,
    upcast: bool,
    narrowed: ir.DataType | None = None,
) -> Attention:
    """The attention with scores ``s`` and values ``v``."""
    parts = m.root.op_type == "Reshape"
    scores = scores_of(m, s, parts=parts)
    if parts:
        whole = unmerged(m, v)
        if whole is None:
            m.refuse("values are not merged batches and heads", v)
        v = whole
    q = _heads_before_cast(m, scores.q)
    k = _heads_before_cast(m, scores.k, transposed=scores.k_transposed)
    values = heads_of(m, v)
    (q, of_q), (k, of_k) = _unscaled_heads(m, q), _unscaled_heads(m, k)
    rank = m.rank(scores.q)
    if q is None or k is None or values is None or rank is None or not rank == m.rank(scores.k) == m.rank(v):
        m.refuse("queries, keys or values are not [batch, heads, length, size]", v)
    softmax = m.node("softmax")
    last = m.rank(softmax.outputs[0])
    if last is None or axis_of(m, softmax, last, -1) != last - 1:
        m.refuse("the softmax is not taken over keys", s)
    (batch, heads, _, size), (_, _, keys, value_size) = q.shape, values.shape
    if not isinstance(heads, int) or not isinstance(size, int) or not isinstance(value_size, int):
        m.refuse("the number of heads or their size is unknown", v)
    if not same_shape(m, k.shape, (batch, heads, keys, size)) or not same_shape(
        m, values.shape[:2], (batch, heads)
    ):
        pairs = [*zip(k.shape, (batch, heads, keys, size), strict=True), (values.shape[0], batch)]
        hints = [relation_hint(*pair) for pair in pairs if not m.cx.facts.dim_equal(*pair)]
        hint = next((hint for hint in hints if hint is not None), None)
        m.refuse("keys and values differ from queries in batch, heads or length", v, hint=hint)
    if scores.widened:
        q, k = q.converted(ir.DataType.FLOAT), k.converted(ir.DataType.FLOAT)
    if narrowed is not None:
        values = values.converted(ir.DataType.FLOAT)
    found = Attention(
        q,
        k,
        values,
        scores.scale * of_q * of_k,
        guarded=guarded,
        upcast=upcast,
        merged=rank == 3,
        softcap=scores.softcap,
        narrowed=narrowed,
    )
    for term in scores.terms:
        _require_broadcast(m, tensor_of(term), without_heads(found, found.score_shape))
    given, expected = m.shape(m.root.outputs[0]), without_heads(found, found.shape)
    if (
        given is None
        or len(given) != len(expected)
        or not all(same_dim(m, *pair) for pair in zip(given, expected, strict=True))
    ):
        m.refuse(WIDENED, s)
    return _with_terms(m, found, scores)


def _heads_before_cast(m: Match, value: ir.Value, *, transposed: bool = False) -> Heads | None:
    """``value`` as heads, whose conversion from half precision to float may follow other views."""
    node = producer_of(value, "Cast")
    if node is None or not m.only_use(value) or m.dtype(value) != ir.DataType.FLOAT:
        return heads_of(m, value, transposed=transposed)
    source = node.inputs[0]
    assert source is not None
    found = heads_of(m, source, transposed=transposed) if m.dtype(source) in HALVES else None
    return heads_of(m, value, transposed=transposed) if found is None else found.converted(ir.DataType.FLOAT)


def without_heads(found: Attention, shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """``shape`` in the form of the operands: without N if batches and heads are merged."""
    return (shape[0], *shape[2:]) if found.merged else shape


def _require_broadcast(m: Match, mask: ir.Value, expected: tuple[Dim, ...]) -> None:
    """Refuse unless ``mask`` broadcasts to scores of shape ``expected``."""
    shape = m.shape(mask)
    if shape is None or len(shape) > len(expected):
        m.refuse("the mask has more axes than the scores", mask)
    for dim, size in zip(shape[::-1], expected[::-1], strict=False):
        if dim != 1 and not equals_in_valid_runs(m, dim, size):
            hint = relation_hint(dim, size)
            m.refuse("the mask does not broadcast to batches, heads, queries and keys", mask, hint=hint)


def _with_terms(m: Match, found: Attention, scores: Scores) -> Attention:
    """``found`` with the terms of ``scores``; a causal mask among them becomes the flag ``causal``.

    If another term may also mask keys, the causal mask remains a term. For a query whose keys are all masked,
    the lower mask constant determines the result, and kernels with a causal flag have their own constant.
    """
    lows = [_causal_mask_value(m, found, term) for term in scores.terms]
    causal = [low for low in lows if low is not None]
    others = tuple(term for term, low in zip(scores.terms, lows, strict=True) if low is None)
    sizes = [abs(term.low) if isinstance(term, Mask) else max_magnitude(m, term) for term in others]
    if not causal or not sum(sizes) <= _MASK_DOMINANCE * -max(*causal, _KERNEL_MASK_VALUE):
        return replace(found, terms=scores.terms)
    return replace(found, causal=True, terms=others)


def _causal_mask_value(m: Match, found: Attention, term: Term) -> float | None:
    """The mask constant of ``term`` if it is only a causal mask."""
    tensor = tensor_of(term)
    step, shape, (queries, keys) = step_of(m, tensor), m.shape(tensor) or (), found.score_shape[2:]
    if step is None or step.offset is None or not m.cx.facts.dim_equal(step.offset, 0):
        return None
    if not m.cx.facts.dim_equal(queries, keys) or len(shape) < 2:
        return None
    if not equals_in_valid_runs(m, shape[-2], queries) or not equals_in_valid_runs(m, shape[-1], keys):
        return None
    if isinstance(term, Mask):
        return term.low if bool(step.near) == term.keeps != bool(step.far) else None
    return float(step.far) if step.near == 0 and step.far <= MINUS_INFINITY else None


def equals_in_valid_runs(m: Match, dim: Dim, size: Dim) -> bool:
    """Whether a mask axis of size ``dim`` equals ``size`` in every valid run of the model.

    A mask sliced to min(length, ``size``) is shorter only if the broadcast would fail anyway.
    """
    if m.cx.facts.dim_equal(dim, size):
        return True
    atom = symbolic.lone_atom(dim)
    if not isinstance(atom, Minimum):
        return False
    others = [arg for arg in atom.operands if not m.cx.facts.dim_equal(arg, size)]
    return len(others) < len(atom.operands) and all(isinstance(arg, int) and arg > 1 for arg in others)


def _unscaled_heads(m: Match, heads: Heads | None) -> tuple[Heads | None, float]:
    """``heads`` without scalar factors before the transposition, and their product."""
    if heads is None or heads.has_rows or heads.split is None:
        return heads, 1.0
    value, scale = unscaled(m, heads.split)
    return (heads, 1.0) if scale == 1.0 else (heads_of(m, value), scale)
