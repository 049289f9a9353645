"""Scaled dot-product attention, however it is spelt: softmax(q @ k.T * scale + bias) @ v for each head.

Heads are told by shapes, so it does not matter which exporter wrote them. Sizes below: B batches,
N heads, S queries, T keys, D elements of a head.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from graphopt import ir
from graphopt.context import Dim, Refusal
from graphopt.numerics import Numerics
from graphopt.rewrite import Match, Outcome, Reassociates, rule
from graphopt.rewrite.builder import Builder
from graphopt.rules import _forms as forms

#: What is below this takes every weight, whatever is added to it.
_MINUS_INFINITY = -1e30


@dataclass(frozen=True)
class Mask:
    """A choice between scores and a number so low that its weight vanishes beside any other.

    Attributes:
        condition: of a Where that broadcasts to [B, N, S, T].
        kept: the scores.
        low: the number, which stays the same whatever score is added to it.
        keeps: what ``condition`` is where scores are kept.
    """

    condition: ir.Value
    kept: ir.Value
    low: float
    keeps: bool


@dataclass(frozen=True)
class Scores:
    """What a softmax is taken of: ``q @ k.T * scale + bias``.

    Attributes:
        q, k: [B, N, S, D] and [B, N, D, T].
        bias: what is added, that broadcasts to [B, N, S, T].
        mask: what is attended to at all, instead.
    """

    q: ir.Value
    k: ir.Value
    scale: float = 1.0
    bias: ir.Value | None = None
    mask: Mask | None = None


def scores_of(m: Match, value: ir.Value) -> Scores | Refusal:
    """Read ``value`` as attention scores, or say what stands in the way."""
    bias: ir.Value | None = None
    mask: Mask | None = None
    scale = 1.0
    while True:
        node = value.producer()
        if node is None or node.domain or node.graph is not m.root.graph or not m.only_use(value):
            return m.no(
                "the scores are not a product of queries and keys that only the softmax reads",
                value,
                shared=True,
            )
        if node.op_type == "MatMul":
            q, k = node.inputs
            assert q is not None and k is not None
            return _unscaled(m, Scores(q, k, scale=scale, bias=bias, mask=mask))
        if node.op_type in ("Mul", "Div") and (factor := _factor(m, node)) is not None:
            scale, value = scale * factor[1], factor[0]
        elif node.op_type == "Add" and bias is None and mask is None and scale == 1.0:
            sides = [side for side in node.inputs if side is not None]
            inner = next((side for side in sides if _is_product(m, side)), None)
            if inner is None:
                return m.no("no side of the sum is a product of queries and keys", value)
            bias = sides[1] if inner is sides[0] else sides[0]
            value = inner
        elif node.op_type == "Where" and bias is None and mask is None and scale == 1.0:
            mask = _mask_of(m, node)
            if mask is None:
                return m.no(
                    "what is masked does not vanish", value, hint="mask with -inf, or a number near it"
                )
            value = mask.kept
        else:
            return m.no(f"{node.op_type} is not part of attention", value)


def _mask_of(m: Match, node: ir.Node) -> Mask | None:
    """What the Where ``node`` masks."""
    condition, *choices = node.inputs
    for keeps, (kept, other) in ((True, choices), (False, choices[::-1])):
        low = ir.scalar_of(other)
        if low is not None and low <= _MINUS_INFINITY and condition is not None and kept is not None:
            return Mask(condition, kept, float(low), keeps)
    return None


def _is_product(m: Match, value: ir.Value) -> bool:
    """Whether ``value`` is a MatMul, perhaps times numbers."""
    node = value.producer()
    while node is not None and node.op_type in ("Mul", "Div") and (factor := _factor(m, node)) is not None:
        node = factor[0].producer()
    return node is not None and node.op_type == "MatMul" and not node.domain


def _factor(m: Match, node: ir.Node) -> tuple[ir.Value, float] | None:
    """(x, c) if ``node`` computes x * c for a number c."""
    a, b = node.inputs
    for x, c in ((a, b), (b, a)) if node.op_type == "Mul" else ((a, b),):
        number = ir.scalar_of(c)
        if x is not None and number and math.isfinite(number):
            return x, float(number) if node.op_type == "Mul" else 1.0 / float(number)
    return None


def _unscaled(m: Match, scores: Scores) -> Scores:
    """``scores`` with factors of q and k made part of the scale."""
    q, k = (_unscaled_value(m, value) for value in (scores.q, scores.k))
    return replace(scores, q=q[0], k=k[0], scale=scores.scale * q[1] * k[1])


def _unscaled_value(m: Match, value: ir.Value) -> tuple[ir.Value, float]:
    node = value.producer()
    scaled = node is not None and node.op_type in ("Mul", "Div") and not node.domain and m.only_use(value)
    return (node is not None and scaled and _factor(m, node)) or (value, 1.0)


@dataclass(frozen=True)
class Heads:
    """A tensor by heads.

    Attributes:
        rows: [B, S, N * D], if there is such a tensor.
        split: [B, N, S, D], if there is such a tensor.
    """

    shape: tuple[Dim, ...]
    rows: ir.Value | None = None
    split: ir.Value | None = None


def heads_of(m: Match, value: ir.Value, *, transposed: bool = False) -> Heads | None:
    """``value`` as heads: [B, N, S, D], or [B, N, D, S] if ``transposed``."""
    shape = m.shape(value)
    if shape is None or len(shape) != 4:
        return None
    node = value.producer()
    perm = forms.perm_of(m, node) if node is not None and _is(node, "Transpose") else None
    if transposed:
        shape = (*shape[:2], shape[3], shape[2])
        if node is None or perm not in ((0, 2, 3, 1), (0, 1, 3, 2)):
            return None
        source = node.inputs[0]
        assert source is not None
        if perm == (0, 1, 3, 2):
            return heads_of(m, source)
        return Heads(shape, rows=_rows(m, source, shape))
    split = Heads(shape, split=value)
    if node is None or perm != (0, 2, 1, 3):
        return split
    assert node.inputs[0] is not None
    return replace(split, rows=_rows(m, node.inputs[0], shape))


def _rows(m: Match, value: ir.Value, shape: tuple[Dim, ...]) -> ir.Value | None:
    """[B, S, N * D], of which ``value``, [B, S, N, D], is a view."""
    node = value.producer()
    if node is None or not _is(node, "Reshape") or node.inputs[0] is None:
        return None
    batch, heads, length, size = shape
    wanted = (batch, length, heads * size) if isinstance(heads, int) and isinstance(size, int) else None
    source = node.inputs[0]
    return source if wanted is not None and forms.same_shape(m, m.shape(source), wanted) else None


def _is(node: ir.Node, op_type: str) -> bool:
    return node.op_type == op_type and node.domain == ""


@rule(
    lambda op, s, v: op.MatMul(op.Softmax(s, tag="softmax"), v),
    numerics=Reassociates,
    exclusive=True,
    fuses=True,
    tags=("onnxscript:mha", "onnxscript:sdpa", "onnxruntime:AttentionFusion"),
)
def multi_head_attention(op: Builder, m: Match, s: ir.Value, v: ir.Value) -> Outcome:
    """Attention whose queries are split off rows is a MultiHeadAttention of these rows."""
    if m.cx.options.portable:
        return m.no("it is no operator of the ONNX standard", hint="leave out --portable")
    scores = scores_of(m, s)
    if isinstance(scores, Refusal):
        return scores
    q = heads_of(m, scores.q)
    k = heads_of(m, scores.k, transposed=True)
    values = heads_of(m, v)
    if q is None or k is None or values is None:
        return m.no("queries, keys or values are not [batch, heads, length, size]", v)
    if forms.axis_of(m, m.node("softmax"), 4, -1) != 3:
        return m.no("it is not taken over keys", s)
    (batch, heads, length, size), (_, _, keys, value_size) = q.shape, values.shape
    if not isinstance(heads, int) or not isinstance(size, int) or not isinstance(value_size, int):
        return m.no("how many heads there are, or their sizes, are unknown", v)
    if not forms.same_shape(m, k.shape, (batch, heads, keys, size)) or not forms.same_shape(
        m, values.shape[:2], (batch, heads)
    ):
        return m.no("keys and values have other batches, heads or lengths than queries", v)
    if not forms.same_shape(m, m.shape(m.root.outputs[0]), (batch, heads, length, value_size)):
        return m.no(forms.WIDENED, s)
    if q.rows is None:
        return m.no("queries are not split off rows of all heads", scores.q)
    if not m.cx.target.has_kernel("MultiHeadAttention", ir.MICROSOFT, 1, m.dtype(scores.q)):
        return m.no("the target has no kernel for it", scores.q)
    bias = _bias(op, m, scores, (batch, heads, length, keys), q.rows)
    if isinstance(bias, Refusal):
        return bias
    inputs = [q.rows, *_keys_and_values(op, k, values)]
    if bias is not None:
        inputs += [None, None, bias]
    attributes = {"num_heads": heads, "scale": scores.scale}
    rows = op.node("MultiHeadAttention", inputs, attributes, domain=ir.MICROSOFT)
    # what joins the heads again cancels this
    return op.Transpose(op.Reshape(rows, np.array([0, 0, heads, value_size])), perm=[0, 2, 1, 3])


def _keys_and_values(op: Builder, k: Heads, v: Heads) -> list[ir.Value | None]:
    """Both as rows, or both by heads."""
    if k.rows is not None and v.rows is not None:
        return [k.rows, v.rows]
    return [_as_split(op, k), _as_split(op, v)]


def _as_split(op: Builder, heads: Heads) -> ir.Value:
    if heads.split is not None:
        return heads.split
    _, count, _, size = heads.shape
    split = op.Transpose(op.Reshape(heads.rows, np.array([0, 0, count, size])), perm=[0, 2, 1, 3])
    assert isinstance(split, ir.Value)
    return split


def _bias(
    op: Builder, m: Match, scores: Scores, wanted: tuple[Dim, ...], rows: ir.Value
) -> ir.Value | Refusal | None:
    """What is added to the scores, [B or 1, N or 1, S, T]."""
    if scores.mask is not None:
        if m.cx.options.numerics is not Numerics.APPROXIMATES:
            return m.no(
                "a Where masks the scores, and hides NaN in them; a sum does not",
                scores.mask.condition,
                hint="--fast-math, or add a mask of 0 and -inf instead",
            )
        dtype = m.dtype(scores.q)
        assert dtype is not None
        zero, low = np.array(0, dtype.numpy()), np.array(scores.mask.low, dtype.numpy())
        choices = (zero, low) if scores.mask.keeps else (low, zero)
        bias, shape = op.Where(scores.mask.condition, *choices), m.shape(scores.mask.condition)
    elif scores.bias is not None:
        bias, shape = scores.bias, m.shape(scores.bias)
    else:
        return None
    told = scores.bias if scores.mask is None else scores.mask.condition
    if shape is None or len(shape) > 4:
        return m.no("the shape of the mask is unknown", told)
    full = (1,) * (4 - len(shape)) + shape
    fits = all(dim == 1 or m.cx.facts.dim_equal(dim, size) for dim, size in zip(full, wanted, strict=True))
    if not fits:
        return m.no("the mask does not broadcast to batches, heads, queries and keys", told)
    if not m.cx.facts.dim_equal(full[3], wanted[3]):
        hint = f"expand its last axis to {wanted[3]}"
        return m.no("the mask is the same for all keys", told, hint=hint)
    missing = range(4 - len(shape))
    whole = forms.unsqueeze(op, m, bias, missing) if missing else bias
    return whole if m.cx.facts.dim_equal(full[2], wanted[2]) else _for_each_query(op, whole, rows)


def _for_each_query(op: Builder, bias: ir.Value, rows: ir.Value) -> ir.Value:
    """[B or 1, N or 1, 1, T], repeated for each of the queries, [B, S, N * D]."""
    one = np.array([1])
    queries = op.Gather(op.Shape(rows), one)
    repeated = op.Expand(bias, op.Concat(np.array([1, 1]), queries, one, axis=0))
    assert isinstance(repeated, ir.Value)
    return repeated
