"""Scaled dot-product attention, however it is spelt: softmax(q @ k.T * scale + bias) @ v for each head.

Heads are told by shapes, so it does not matter which exporter wrote them. Sizes below: B batches,
N heads, S queries, T keys, D elements of a head.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from graphopt import ir
from graphopt.analysis import dims
from graphopt.analysis.polynomial import Extremum
from graphopt.context import Dim, Refusal
from graphopt.numerics import Numerics
from graphopt.rewrite import Match
from graphopt.rules import _forms as forms
from graphopt.rules._attention_bounds import largest
from graphopt.rules._attention_causal import step_of
from graphopt.rules._attention_heads import Heads, heads_of
from graphopt.rules._attention_merged import parted, parted_keys, same
from graphopt.rules._constants import times_number

#: What is below this takes every weight from what scores there are.
MINUS_INFINITY = -1e30
#: What is below this takes every weight that a trained network is known to give.
_FAR_BELOW = -9e3
#: How large numbers are that what hides keys hides them from, beside what they are hidden by.
_BESIDE = 1e-3
#: The lowest number of kernels that hide keys by themselves, which is a finite one.
_LOWEST = float(np.finfo(np.float32).min)
#: Domains of products and what stands around them.
_KNOWN = ("", ir.MICROSOFT)
#: Operators that are looked through for the product of queries and keys.
_FAR = 8


@dataclass(frozen=True)
class Mask:
    """A choice between scores and a number so low that its weight vanishes beside any other.

    Attributes:
        condition: of a Where that broadcasts to [B, N, S, T].
        kept: the scores.
        low: the number, which stays the same whatever score is added to it, but not whatever mask.
        keeps: what ``condition`` is where scores are kept.
    """

    condition: ir.Value
    kept: ir.Value
    low: float
    keeps: bool


#: What is done to scores: a number for each is added, or some are masked.
Term = ir.Value | Mask


@dataclass(frozen=True)
class Scores:
    """What a softmax is taken of: ``q @ k.T * scale``, and more.

    Attributes:
        q, k: [B, N, S, D] and [B, N, D, T]; or, of heads that are batches, without N.
        k_turned: ``k`` is [B, N, D, T], not [B, N, T, D].
        terms: what is done to them, last first.
    """

    q: ir.Value
    k: ir.Value
    k_turned: bool = True
    scale: float = 1.0
    terms: tuple[Term, ...] = ()


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
            return m.no("values are not batches and heads that were merged", v)
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
    if last is None or forms.axis_of(m, softmax, last, -1) != last - 1:
        return m.no("it is not taken over keys", s)
    (batch, heads, _, size), (_, _, keys, value_size) = q.shape, values.shape
    if not isinstance(heads, int) or not isinstance(size, int) or not isinstance(value_size, int):
        return m.no("how many heads there are, or their sizes, are unknown", v)
    if not forms.same_shape(m, k.shape, (batch, heads, keys, size)) or not forms.same_shape(
        m, values.shape[:2], (batch, heads)
    ):
        return m.no("keys and values have other batches, heads or lengths than queries", v)
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
        return m.no(forms.WIDENED, s)
    return _masked(m, found, scores)


def without_heads(found: Attention, shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """``shape`` as it is given, where heads are batches."""
    return (shape[0], *shape[2:]) if found.merged else shape


def told_of(term: Term) -> ir.Value:
    """The tensor that ``term`` is: its numbers, or truths."""
    return term.condition if isinstance(term, Mask) else term


def _unfit(m: Match, mask: ir.Value, wanted: tuple[Dim, ...]) -> Refusal | None:
    """Why ``mask`` can't be added to scores of the shape that is wanted."""
    shape = m.shape(mask)
    if shape is None or len(shape) > len(wanted):
        return m.no("the mask has more axes than the scores", mask)
    for dim, size in zip(shape[::-1], wanted[::-1], strict=False):
        if dim != 1 and not is_along(m, dim, size):
            named = dims.declared_name(dim) and dims.declared_name(size)
            hint = f"let inputs whose dims {dim} and {size} are the same say so" if named else None
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
    atom = dims.lone_atom(dim)
    if not isinstance(atom, Extremum) or atom.sign != -1:
        return False
    others = [arg for arg in atom.args if not m.cx.facts.dim_equal(arg, size)]
    return len(others) < len(atom.args) and all(isinstance(arg, int) and arg > 1 for arg in others)


def scores_of(m: Match, value: ir.Value, *, parts: bool = False) -> Scores | Refusal:
    """Read ``value`` as attention scores, or say what stands in the way.

    Args:
        parts: batches and heads are merged in the products, and perhaps not elsewhere.
    """
    terms: list[Term] = []
    scale = 1.0
    while True:
        node = value.producer()
        fused = node is not None and _is_fused_product(m, node)
        if (
            node is None
            or (node.domain and not fused)
            or node.graph is not m.root.graph
            or not m.only_use(value)
        ):
            return m.no(
                "the scores are not a product of queries and keys that only the softmax reads",
                value,
                shared=True,
            )
        if node.op_type in ("MatMul", "FusedMatMul"):
            q, k = node.inputs
            assert q is not None and k is not None
            turned = not (fused and m.attribute(node, "transB"))
            alpha = float(m.attribute(node, "alpha")) if fused else 1.0
            (q, of_q), (k, of_k) = _unscaled(m, q), _unscaled(m, k)
            if parts:
                queries, keys = parted(m, q), parted_keys(m, k)
                if queries is None or keys is None:
                    return m.no("queries or keys are not batches and heads that were merged", q)
                q, (k, turned) = queries, keys if turned else (keys[0], not keys[1])
            return Scores(q, k, turned, scale * alpha * of_q * of_k, tuple(terms))
        if node.op_type in ("Mul", "Div") and (factor := times_number(node)) is not None:
            scale, value = scale * factor[1], factor[0]
        elif node.op_type in ("Add", "Where") and scale != 1.0:
            return m.no("what is added to the scores, or hides some, is scaled with them", value)
        elif node.op_type == "Add":
            sides = [side for side in node.inputs if side is not None]
            inner = next((side for side in sides if _is_product(m, side)), None)
            if inner is None:
                return m.no("no side of the sum is a product of queries and keys", value)
            terms.append(sides[1] if inner is sides[0] else sides[0])
            value = inner
        elif node.op_type == "Where":
            mask = _mask_of(m, node)
            if mask is None:
                return m.no("what is masked does not vanish", value, hint=_how_to_mask(m, node))
            terms.append(mask)
            value = mask.kept
        elif parts and (source := parted(m, value)) is not None:
            value = source
        else:
            return m.no(f"{node.op_type} is not part of attention", value)


def _is_fused_product(m: Match, node: ir.Node) -> bool:
    """Whether ``node`` is a product that may scale, and transpose its second operand, but does no more."""
    if node.op_type != "FusedMatMul" or node.domain != ir.MICROSOFT:
        return False
    return not any(m.attribute(node, name) for name in ("transA", "transBatchA", "transBatchB"))


def _mask_of(m: Match, node: ir.Node) -> Mask | None:
    """What the Where ``node`` masks."""
    limit = _FAR_BELOW if m.cx.options.numerics is Numerics.APPROXIMATES else MINUS_INFINITY
    return next((mask for mask in _choices(node) if mask.low <= limit), None)


def _choices(node: ir.Node) -> Iterator[Mask]:
    """What the Where ``node`` masks, if that is what it is for."""
    condition, *choices = node.inputs
    for keeps, (kept, other) in ((True, choices), (False, choices[::-1])):
        low = ir.scalar_of(other)
        if low is not None and condition is not None and kept is not None:
            yield Mask(condition, kept, float(low), keeps)


def _how_to_mask(m: Match, node: ir.Node) -> str:
    near = any(MINUS_INFINITY < mask.low <= _FAR_BELOW for mask in _choices(node))
    return "mask with -inf, or a number near it" + ("; or take it for that: --fast-math" if near else "")


def _is_product(m: Match, value: ir.Value) -> bool:
    """Whether ``value`` is a MatMul, perhaps scaled, masked, or with more added to it."""
    pending: list[ir.Value | None] = [value]
    for _ in range(_FAR):
        node = None if not pending else forms.producer_of(pending.pop(0), domains=_KNOWN)
        if node is None:
            continue
        if node.op_type == "MatMul" or _is_fused_product(m, node):
            return True
        if node.op_type in ("Mul", "Div") and (factor := times_number(node)) is not None:
            pending.append(factor[0])
        elif node.op_type == "Add":
            pending += node.inputs
        elif node.op_type == "Reshape":
            pending.append(node.inputs[0])
        elif node.op_type == "Where":
            pending += [mask.kept for mask in _choices(node)]
    return False


def _unscaled(m: Match, value: ir.Value) -> tuple[ir.Value, float]:
    """``value`` without factors, which become part of the scale, also from before it was transposed."""
    node, scale = forms.producer_of(value, domains=_KNOWN), 1.0
    while node is not None and node.op_type in ("Mul", "Div") and m.only_use(value):
        factor = times_number(node)
        if factor is None or m.rank(factor[0]) != m.rank(value):
            break
        value, scale = factor[0], scale * factor[1]
        node = forms.producer_of(value, domains=_KNOWN)
    return value, scale


def _unscaled_heads(m: Match, heads: Heads | None) -> tuple[Heads | None, float]:
    """``heads`` without factors from before they were transposed."""
    if heads is None or heads.has_rows or heads.split is None:
        return heads, 1.0
    value, scale = _unscaled(m, heads.split)
    return (heads, 1.0) if scale == 1.0 else (heads_of(m, value), scale)
