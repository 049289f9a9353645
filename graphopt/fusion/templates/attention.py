"""Attention in blocks of keys: softmax(scale · Q · Kᵀ + mask) · V without a tensor of scores.

The anchors are the operators that the fusions of attention create. The scores of a few queries and a block of
keys stay in a cache, after Dao et al., FlashAttention (2022). A past is copied to the present block by block,
while a cache has the block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from graphopt import ir
from graphopt.analysis.symbolic import typical_size
from graphopt.context import Context, Dim
from graphopt.fusion.loops.ir import CantFuse
from graphopt.fusion.template_table import Match, template
from graphopt.fusion.unknown_sizes import require_static_size
from graphopt.util.lazy_dataclass import dataclass

#: Operands, in the order of the printer. Without keys and values, the queries are packed with them.
QUERY, KEY, VALUE, MASK, PAST_KEY, PAST_VALUE, LENGTHS, TOTAL, COSINES, SINES = range(10)
#: Maximum number of queries for which the kernel is faster than Attention, and minimum number if causal.
_FEW_QUERIES, _CAUSAL_QUERIES = 2, 64
#: Number of queries up to which the kernel is faster than MultiHeadAttention, without and with a mask.
_QUERIES = {False: 64, True: 256}
#: Maximum length of the past for which the kernel is faster for one query if heads don't share keys.
_LONGEST_PAST = 256
#: Attributes of GroupQueryAttention that have no kernel unless they have these values.
_GROUPED = {
    "causal": (1,),
    "k_quant_type": ("NONE",),
    "kv_cache_bit_width": (0,),
    "qk_output": (0,),
    "sliding_window_cache": (0,),
    "smooth_softmax": (-1, 0),
    "v_quant_type": ("NONE",),
}


@dataclass(frozen=True)
class AttentionParameters:
    """Static parameters.

    Attributes:
        heads, key_heads: numbers of heads of the queries, and of the keys and values, which groups of them
            share.
        by_heads: for the queries, keys, values and the result, whether the layout is [batch, heads, length,
            depth]; otherwise, it is [batch, length, heads · depth].
        mask_axes: for batch, heads, queries and keys, the axis of the mask, ``None`` if it has none.
        scale: factor of the products; ``None`` for 1 / √depth.
        softcap: scores s become c · tanh(s / c), unless it is 0.
        window: number of keys that a query uses, counted from the last one; 0 for all.
        is_boolean: whether the mask is true for keys to use; otherwise, it is added.
        is_zero: whether queries without keys have results of 0: no element of their mask exceeds the lowest
            float. Otherwise, the results are those of the softmax.
        is_causal: whether query i uses only the past and the new keys 0 … i; there are as many new keys as
            queries.
        is_grouped: whether the operator is GroupQueryAttention.
        is_interleaved: whether its rotary embedding rotates adjacent elements.
        is_guarded: whether weights of NaN become 0.
    """

    heads: int
    key_heads: int
    by_heads: tuple[bool, bool, bool, bool]
    mask_axes: tuple[int | None, ...] = ()
    scale: float | None = None
    softcap: float = 0.0
    window: int = 0
    is_boolean: bool = False
    is_zero: bool = False
    is_causal: bool = False
    is_grouped: bool = False
    is_interleaved: bool = False
    is_guarded: bool = False


def is_faster(match: Match, cx: Context) -> bool:
    """Whether the kernel is faster, by its measured times relative to onnxruntime's (docs/kernels.md).

    onnxruntime 1.31 is as fast as the template, at 1 thread with AVX-512, for attention of many queries that
    is not causal, and for one query with a long past, unless several heads share keys.
    """
    found: AttentionParameters = match.parameters
    length = _length(match.operands, QUERY, found.by_heads, cx)
    queries = typical_size(length) or 1
    past = match.operands[PAST_KEY]
    is_short = past is None or (typical_size((cx.shape(past) or ())[2]) or 1) <= _LONGEST_PAST
    if found.is_grouped:
        return is_short or queries > 1 or found.heads > found.key_heads
    if past is not None:
        return is_short and queries == 1
    if match.nodes[-1].op_type == "Attention":
        if found.is_causal:
            return not isinstance(length, int) or queries >= _CAUSAL_QUERIES
        return queries <= _FEW_QUERIES
    return found.is_causal or queries <= _QUERIES[match.operands[MASK] is not None]


@template("com.microsoft::MultiHeadAttention", is_faster=is_faster)
def multi_head_attention(anchor: ir.Node, cx: Context) -> Match:
    """MultiHeadAttention of separate queries, keys and values."""
    query, key, value, bias, padding, mask, *past = _inputs(anchor, 10)
    if bias is not None or padding is not None or any(past[2:]):
        raise CantFuse("no kernels for attention with a bias, a padding mask or a shared past")
    attributes = _attributes(anchor)
    if query is None or key is None or value is None or cx.rank(query) != 3:
        raise CantFuse("no kernels for packed queries, keys and values")
    if mask is not None and cx.rank(mask) != 4:
        raise CantFuse("onnxruntime rejects its mask")
    heads, by_heads = int(attributes["num_heads"]), (False, cx.rank(key) == 4, cx.rank(value) == 4, False)
    lengths: list[Dim | None] = [_length((query, key, value), KEY, by_heads, cx)]
    lengths += [(cx.shape(value) or (None,) * 3)[2] for value in past[:1] if value is not None]
    if len(lengths) == 2 and all(isinstance(length, int) for length in lengths):
        raise CantFuse("onnxruntime rejects it in functions if the numbers of past and new keys are known")
    found = AttentionParameters(
        heads,
        heads,
        by_heads,
        scale=attributes.get("scale") or None,
        is_causal=bool(attributes.get("unidirectional")),
    )
    return _match(anchor, cx, (query, key, value, mask, *past[:2]), found)


@template("Attention", is_faster=is_faster)
def attention(anchor: ir.Node, cx: Context) -> Match:
    """Attention of opset 23 or newer, of all keys."""
    *operands, lengths = _inputs(anchor, 7)
    if lengths is not None:
        raise CantFuse("no kernels for attention with padded keys")
    attributes = _attributes(anchor)
    if attributes.get("softmax_precision", 1) not in (0, 1):
        raise CantFuse("no kernels for attention with another precision")
    if any(attributes.get(name, -1) != -1 for name in ("left_window_size", "right_window_size")):
        raise CantFuse("no kernels for attention with windows")
    query, key, value = operands[:MASK]
    if query is None or key is None or value is None:
        raise CantFuse("an operand is missing")
    ranks = {cx.rank(each) for each in (query, key, value)}
    if ranks == {4}:
        heads, key_heads = (require_static_size(each, 1, cx) for each in (query, key))
    elif ranks == {3} and "q_num_heads" in attributes and "kv_num_heads" in attributes:
        heads, key_heads = int(attributes["q_num_heads"]), int(attributes["kv_num_heads"])
    else:
        raise CantFuse("the numbers of heads are unknown")
    found = AttentionParameters(
        heads,
        key_heads,
        (ranks == {4},) * 4,
        scale=attributes.get("scale") or None,
        softcap=max(0.0, attributes.get("softcap", 0.0)),
        is_zero=True,  # in onnxruntime 1.31
        is_causal=bool(attributes.get("is_causal")),
    )
    return _match(anchor, cx, operands, found)


@template("com.microsoft::GroupQueryAttention", is_faster=is_faster)
def group_query_attention(anchor: ir.Node, cx: Context) -> Match:
    """GroupQueryAttention with present keys and values of floats, and rotary embedding."""
    query, key, value, *past, lengths, total, cosines, sines = _inputs(anchor, 9)[:9]
    if any(_inputs(anchor, 9)[9:]):
        raise CantFuse("no kernels for positions, biases, sinks and scales of grouped attention")
    attributes = _attributes(anchor)
    if any(attributes.get(name, values[0]) not in values for name, values in _GROUPED.items()):
        raise CantFuse("no kernels for these attributes of grouped attention")
    if query is None or lengths is None or total is None or (key is None) != (value is None):
        raise CantFuse("an operand is missing")
    if not all(value.name for value in anchor.outputs[:3]) or len(anchor.outputs) < 3:
        raise CantFuse("no kernels for grouped attention without present keys and values")
    turns = bool(attributes.get("do_rotary"))
    if (cosines is not None, sines is not None) != (turns, turns):
        raise CantFuse("its rotary embedding has no angles, or they are not used")
    window = attributes.get("local_window_size", -1)
    if window == 0:
        raise CantFuse("its window is empty")
    if window > 0 and attributes.get("softcap", 0.0) > 0 and (cx.shape(query) or ())[1:2] != (1,):
        # the soft cap maps a score of -inf to a finite score
        raise CantFuse("with a window and a soft cap, onnxruntime computes padded queries from masked keys")
    ranks = {LENGTHS: (lengths, (1,)), TOTAL: (total, (0, 1)), COSINES: (cosines, (2,)), SINES: (sines, (2,))}
    for each, allowed in ranks.values():
        if each is not None and cx.rank(each) not in allowed:
            raise CantFuse(f"the rank of {each.name!r} is not supported")
    if any(cx.dtype(each) is not ir.DataType.INT32 for each in (lengths, total)):
        raise CantFuse("its lengths are not of int32")
    found = AttentionParameters(
        int(attributes["num_heads"]),
        int(attributes["kv_num_heads"]),
        (False,) * 4,
        scale=attributes.get("scale") or None,
        softcap=max(0.0, attributes.get("softcap", 0.0)),
        window=max(0, window),
        is_causal=True,
        is_grouped=True,
        is_interleaved=bool(attributes.get("rotary_interleaved")),
    )
    return _match(anchor, cx, (query, key, value, None, *past, lengths, total, cosines, sines), found)


def _match(
    anchor: ir.Node, cx: Context, given: Sequence[ir.Value | None], found: AttentionParameters
) -> Match:
    """The match of ``anchor``; raises CantFuse if types, ranks or results are not supported."""
    operands = (*given, *(None,) * (SINES + 1 - len(given)))
    if found.heads < 1 or found.key_heads < 1 or found.heads % found.key_heads:
        raise CantFuse("the heads of queries are not groups of the heads of keys")
    floats = [*zip(operands[:MASK], found.by_heads, strict=False)]
    floats += [(value, True) for value in operands[PAST_KEY:LENGTHS]]
    for value, is_by_heads in floats:
        if value is not None and cx.rank(value) != (4 if is_by_heads else 3):
            raise CantFuse(f"the rank of {value.name!r} is not supported")
    for value in (*(value for value, _ in floats), *operands[COSINES:]):
        if value is not None and cx.dtype(value) is not ir.DataType.FLOAT:
            raise CantFuse("no kernels for attention of other types than float")
    mask = operands[MASK]
    if mask is not None:
        rank = cx.rank(mask)
        if rank is None or not 2 <= rank <= 4:
            raise CantFuse(f"the rank of {mask.name!r} is not supported")
        boolean = cx.dtype(mask) is ir.DataType.BOOL
        if not boolean and cx.dtype(mask) is not ir.DataType.FLOAT:
            raise CantFuse("no kernels for masks of other types than float and bool")
        found = replace(found, mask_axes=(*(None,) * (4 - rank), *range(rank)), is_boolean=boolean)
    if found.is_causal and not found.is_grouped:
        queries, keys = (_length(operands, each, found.by_heads, cx) for each in (QUERY, KEY))
        if mask is not None or queries != keys:
            raise CantFuse("no kernels for causal attention with a mask, or of another number of keys")
    results = _results(anchor, operands)
    return Match("attention", (anchor,), operands, results, found)


def _results(anchor: ir.Node, operands: Sequence[ir.Value | None]) -> tuple[ir.Value, ...]:
    """The result, and present keys and values if there are any, which a past requires."""
    result, *others = anchor.outputs
    if any(value.name for value in others[2:]):
        raise CantFuse("no kernels for attention that returns scores")
    present = [value for value in others[:2] if value.name]
    past = [value for value in operands[PAST_KEY:LENGTHS] if value is not None]
    if len(present) == 1 or len(past) == 1 or len(past) > len(present):
        raise CantFuse("no kernels for past or present keys without values, or without each other")
    if not all(map(ir.is_read, (result, *present))):
        raise CantFuse("nothing reads one of its results")
    return (result, *present)


def _length(operands: Sequence[ir.Value | None], operand: int, by_heads: Sequence[bool], cx: Context) -> Dim:
    value = operands[operand]
    assert value is not None
    return (cx.shape(value) or ())[2 if by_heads[operand] else 1]


def _inputs(node: ir.Node, count: int) -> list[ir.Value | None]:
    found = [value if value is not None and value.name else None for value in node.inputs]
    return [*found, *(None,) * (count - len(found))]


def _attributes(node: ir.Node) -> dict[str, Any]:
    return {name: attribute.value for name, attribute in node.attributes.items()}
