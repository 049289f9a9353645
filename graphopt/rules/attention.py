"""Fused attention: MultiHeadAttention, GroupQueryAttention or the standard Attention."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from graphopt import ir
from graphopt.analysis import symbolic
from graphopt.context import Refusal
from graphopt.rewrite import Builder, Match, Outcome, fusion
from graphopt.rules.building_blocks.attention.bias_input import bias_of
from graphopt.rules.building_blocks.attention.dot_product_attention import Attention, attention_of
from graphopt.rules.building_blocks.attention.heads import split_rows
from graphopt.rules.building_blocks.attention.mask_magnitude import max_magnitude
from graphopt.rules.building_blocks.attention.nan_guard import guard_nan, has_float_inputs
from graphopt.rules.building_blocks.attention.profitability import (
    GROUPED,
    MULTI_HEAD,
    STANDARD,
    Workload,
    choose,
    nodes_saved,
)
from graphopt.rules.building_blocks.attention.scores_and_masks import HALVES, MINUS_INFINITY
from graphopt.rules.building_blocks.dim_options import dim_option
from graphopt.rules.building_blocks.kernel_availability import kernel_refusal
from graphopt.rules.building_blocks.numeric_safety import may_approximate

#: GroupQueryAttention requires head sizes that are a multiple of this, in elements.
_GROUPED_SIZES = 8
#: The opset version that introduced Attention.
_STANDARD_SINCE = 23
#: The lowest float, which many models use as the constant of masks.
_LOWEST = float(np.finfo(np.float32).min)


def _nan_guarded_attention(op: Any, s: Any, v: Any, zero: Any) -> Any:
    """Attention that replaces the NaN weights of queries whose keys are all masked."""
    weights = op.Softmax(s, tag="softmax")
    return op.MatMul(op.Where(op.IsNaN(weights), zero, weights, tag="guard"), v)


@fusion(
    lambda op, s, v: op.MatMul(op.Softmax(s, tag="softmax"), v),
    _nan_guarded_attention,
    lambda op, s, v: op.MatMul(op.Cast(op.Softmax(op.Cast(s, tag="upcast"), tag="softmax")), v),
    lambda op, s, v: op.MatMul(op.Cast(op.Softmax(s, tag="softmax"), tag="narrowed"), v),
    anchors=("Softmax",),
    tags=("onnxscript:mha", "onnxscript:sdpa", "onnxscript:gqa", "onnxruntime:AttentionFusion"),
)
def multi_head_attention(op: Builder, m: Match, s: ir.Value, v: ir.Value, zero: ir.Value | None) -> Outcome:
    """Softmax(scale * q @ k.T + mask) @ v → MultiHeadAttention, GroupQueryAttention or Attention.

    The operator predicted to be the fastest for the sizes is chosen.
    """
    if zero is not None and ir.scalar_of(zero) != 0:
        return m.no("the replacement for NaN is not 0", zero)
    return _fused_attention(op, m, s, v, guarded=zero is not None)


@fusion(lambda op, s, v, shape: op.Reshape(op.MatMul(op.Softmax(s, tag="softmax"), v), shape), anchors=())
def merged_multi_head_attention(op: Builder, m: Match, s: ir.Value, v: ir.Value) -> Outcome:
    """Reshape(Softmax([B * N, S, T]) @ v) → attention by heads [B, N, S, T]."""
    return _fused_attention(op, m, s, v, guarded=False)


def _fused_attention(op: Builder, m: Match, s: ir.Value, v: ir.Value, *, guarded: bool) -> Outcome:
    """The fused operator for the attention at the root, or a refusal."""
    within, given = m.dtype(m.node("softmax").outputs[0]), m.dtype(v)
    in_float = within == ir.DataType.FLOAT and given in HALVES
    upcast, narrows = (in_float and m.dtype(s) == dtype for dtype in (given, within))
    if not upcast and not narrows and not m.dtype(s) == given == within:
        return m.no("scores, values and softmax differ in type, beyond a softmax computed in float", s)
    if narrows and m.cx.target.device.capabilities.is_host:
        return m.no("converting all values to float takes longer on CPUs than the fusion saves", v)
    narrowed = given if narrows else None
    found = attention_of(m, s, v, guarded=guarded, upcast=upcast, narrowed=narrowed)
    if found.guarded and found.masks and has_float_inputs(m):
        return m.no("masked scores may be NaN, which an added mask does not hide", found.q.tensor)
    possible = _possible(m, found)
    if isinstance(possible, Refusal):
        return possible
    work = Workload(
        keys=found.score_shape[3],
        dtype=within if narrows else given,
        masked=bool(found.terms),
        causal=found.causal,
        shared=found.k.shared is not None,
        heads=found.score_shape[1],
        capped=found.softcap > 0 and found.score_shape[2] != 1,
    )
    chosen = choose(m, found.q.tensor, possible, work)
    if not chosen:
        return m.no(chosen.reason, found.q.tensor, hint=chosen.hint)
    result = _MAKERS[chosen.op or ""](op, m, found)
    repeats = (
        found.k.shared is not None and found.score_shape[2] == 1
    )  # ``group-queries`` removes the repetition
    if isinstance(result, Refusal) or repeats or nodes_saved(m, op.made) >= 0:
        return result
    return m.no("converting the operands takes more operators than the fusion saves", found.q.tensor)


def _possible(m: Match, found: Attention) -> list[str] | Refusal:
    """The operators of the target that compute ``found``."""
    # values have the type of the result, to which queries may be converted; the weights may be wider
    x = found.v.tensor if found.narrowed is None else m.node("softmax").outputs[0]
    own = kernel_refusal(m, MULTI_HEAD, x, in_float=True)
    names = [MULTI_HEAD] if own is None and not found.softcap else []
    if own is None and _fits_grouped(m, found) and kernel_refusal(m, GROUPED, x) is None:
        names.append(GROUPED)
    standard = kernel_refusal(m, STANDARD, x, domain="", since=_STANDARD_SINCE)
    standard = standard or _unfit_for_standard(m, found, may_raise_mask=not names)
    if standard is None:
        names.append(STANDARD)
    uses_own = own is not None and not m.cx.options.portable and not found.softcap
    return names or (own if uses_own else standard) or names


def _unfit_for_standard(m: Match, found: Attention, *, may_raise_mask: bool) -> Refusal | None:
    """The refusal if onnxruntime's kernel of Attention does not compute ``found``.

    The kernel fails if the scale is not positive or a dim is 0. For queries whose scores are all minus
    infinity or the lowest number of their type, it returns 0.

    Args:
        may_raise_mask: whether a mask of lowest numbers may be replaced by one of greater numbers.
    """
    if found.scale <= 0:
        return m.no("onnxruntime's Attention requires a scale above 0", found.q.tensor)
    sizes = dict.fromkeys((*found.score_shape, *found.v.shape[3:]))
    empty = [dim for dim in sizes if not symbolic.known_nonzero(dim)]
    if empty:
        names = [name for dim in empty if (name := symbolic.declared_name(dim)) is not None]
        others = [dim for dim in empty if symbolic.declared_name(dim) is None]
        is_enough = all(any(name in symbolic.symbols(dim) for name in names) for dim in others)
        hint = " ".join(dim_option("--dim-range", name, "1:") for name in names) if is_enough else None
        named = ", ".join(map(str, empty))
        return m.no(f"an attention dim may be 0: {named}", found.q.tensor, hint=hint)
    least, is_half = _least_term(m, found), _dtype(m, found) == ir.DataType.FLOAT16
    is_hidden = not least > float(np.finfo(np.float16).min) if is_half else not least >= MINUS_INFINITY
    if is_hidden and not (may_raise_mask and _can_raise_mask(m, found)):
        return m.no(
            "a mask may hide all keys of a query, for which onnxruntime's Attention returns 0", found.q.tensor
        )
    return None


def _dtype(m: Match, found: Attention) -> ir.DataType | None:
    """The type in which the operator computes ``found``."""
    return m.dtype(found.v.tensor) if found.narrowed is None else ir.DataType.FLOAT


def _least_term(m: Match, found: Attention) -> float:
    """A lower bound of the sum of biases and masks."""
    # a guard against NaN also returns 0 if minus infinity masks all keys
    lows = [0.0 if found.guarded and mask.low == -math.inf else mask.low for mask in found.masks]
    lows += [-max_magnitude(m, bias, finite=found.guarded) for bias in found.biases]
    return sum(lows)


def _can_raise_mask(m: Match, found: Attention) -> bool:
    """Whether masks of the lowest float can be replaced by the next greater number.

    Masked keys still have a weight of 0, and equal weights if all keys are masked.
    """
    return _dtype(m, found) == ir.DataType.FLOAT and not found.guarded and _least_term(m, found) >= _LOWEST


def _fits_grouped(m: Match, found: Attention) -> bool:
    """Whether GroupQueryAttention, which is causal, computes ``found``.

    This operator skips the keys and values after each query. If one of them is NaN, the original's result is
    NaN, because the sum of NaN and a mask is NaN, and so is the product of NaN and a weight of 0.
    """
    if has_float_inputs(m) and not may_approximate(m):
        return False
    size, value_size = found.q.shape[3], found.v.shape[3]
    k, v = found.k.shared or found.k, found.v.shared or found.v
    return (
        found.causal
        and not found.terms
        and size == value_size
        and size % _GROUPED_SIZES == 0
        and symbolic.known_nonzero(found.q.shape[2])
        and symbolic.known_nonzero(found.q.shape[0])
        and k.shape[1] == v.shape[1]
    )


def _multi_head(op: Builder, m: Match, found: Attention) -> Outcome:
    """com.microsoft.MultiHeadAttention of queries as rows; keys and values are both rows or both by heads."""
    rows = found.q.as_rows(op, m)
    bias = bias_of(op, m, found)
    if found.k.has_rows and found.v.has_rows and (found.k.shared or found.v.shared) is None:
        inputs = [rows, found.k.as_rows(op, m), found.v.as_rows(op, m)]
    elif not m.cx.facts.dim_equal(found.k.shape[3], found.v.shape[3]):
        return m.no("keys and values by heads differ in the size of heads", found.v.tensor)
    else:
        inputs = [rows, found.k.as_split(op, m), found.v.as_split(op, m)]
    if bias is not None:
        inputs += [None, None, bias]  # type: ignore[list-item]
    attributes = {"num_heads": found.q.shape[1], "scale": found.scale}
    if found.causal:
        attributes["unidirectional"] = 1
    result = op.fused(op.node(MULTI_HEAD, inputs, attributes, domain=ir.MICROSOFT))
    return _split(op, m, result, found)


def _standard(op: Builder, m: Match, found: Attention) -> Outcome:
    """The standard Attention: on rows if all three operands have rows, otherwise by heads."""
    bias = bias_of(op, m, found)
    if bias is not None and not _least_term(m, found) >= MINUS_INFINITY:
        bias = op.Max(bias, np.nextafter(np.float32(_LOWEST), np.float32(0)))
    q, k, v = found.q, found.k.shared or found.k, found.v.shared or found.v
    if k.shape[1] != v.shape[1]:
        k, v = found.k, found.v
    attributes: dict[str, Any] = {"scale": found.scale}
    if found.softcap:
        attributes["softcap"] = found.softcap
    if found.causal:
        attributes["is_causal"] = 1
    if found.upcast:
        attributes["softmax_precision"] = int(ir.DataType.FLOAT)
    rows = q.has_rows and k.has_rows and v.has_rows
    if rows:
        attributes |= {"q_num_heads": q.shape[1], "kv_num_heads": k.shape[1]}
    inputs = [x.as_rows(op, m) if rows else x.as_split(op, m) for x in (q, k, v)]
    result = op.fused(op.node(STANDARD, [*inputs, *([] if bias is None else [bias])], attributes))
    if rows:
        return _split(op, m, result, found)
    return guard_nan(op, m, found, _narrowed(op, result, found), rows=False)


def _group_query_attention(op: Builder, m: Match, found: Attention) -> Outcome:
    """com.microsoft.GroupQueryAttention without a past."""
    k, v = found.k.shared or found.k, found.v.shared or found.v
    rows = found.q.as_rows(op, m)
    batch, _, length, _ = found.q.shape
    one = np.array(1, np.int32)
    if isinstance(length, int) and isinstance(batch, int):
        lengths: Any = np.full(batch, length - 1, np.int32)
        total: Any = np.array(length, np.int32)
    else:
        sizes = op.Cast(op.Shape(rows), to=int(ir.DataType.INT32))
        total = op.Gather(sizes, np.array(1))
        lengths = op.Expand(op.Sub(total, one), op.Gather(op.Shape(rows), np.array([0])))
    inputs = [rows, k.as_rows(op, m), v.as_rows(op, m), None, None, lengths, total]
    attributes = {"num_heads": found.q.shape[1], "kv_num_heads": k.shape[1], "scale": found.scale}
    if found.softcap:
        attributes["softcap"] = found.softcap
    # twice as fast without the outputs of present keys and values
    result = op.fused(op.node(GROUPED, inputs, attributes, domain=ir.MICROSOFT))
    return _split(op, m, result, found)


def _split(op: Builder, m: Match, rows: ir.Value, found: Attention) -> ir.Value:
    """``rows`` split into heads, unless batches and heads are merged."""
    rows = _narrowed(op, rows, found)
    if found.v.has_rows:
        rows = guard_nan(op, m, found, rows, rows=True)
        return rows if found.merged else split_rows(op, m, rows, found.shape)
    return guard_nan(op, m, found, split_rows(op, m, rows, found.shape), rows=False)


def _narrowed(op: Builder, value: ir.Value, found: Attention) -> ir.Value:
    """``value`` in the type of the result."""
    return value if found.narrowed is None else op.Cast(value, to=int(found.narrowed))


_MAKERS = {MULTI_HEAD: _multi_head, STANDARD: _standard, GROUPED: _group_query_attention}
