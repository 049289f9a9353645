"""Attention in blocks of keys: softmax(scale · Q · Kᵀ + mask) · V without a tensor of scores.

The anchors are the operators that the fusions of attention create. The scores of a few queries and a block of
keys stay in a cache, after Dao et al., FlashAttention (2022).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graphopt import ir
from graphopt.analysis.symbolic import typical_size
from graphopt.context import Context, Dim
from graphopt.fusion.loops.ir import CantFuse
from graphopt.fusion.template_table import Match, template
from graphopt.util.lazy_dataclass import dataclass

#: Operands, in the order of the printer.
QUERY, KEY, VALUE, MASK = range(4)
#: Number of queries up to which onnxruntime's operators are far from the memory bandwidth.
_FEW_QUERIES = 16
#: Number of queries up to which the kernel is faster than MultiHeadAttention, without and with a mask.
_QUERIES = {False: 64, True: 512}


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
        is_boolean: whether the mask is true for keys to use; otherwise, it is added.
        is_zero: whether queries without keys have results of 0: no element of their mask exceeds the lowest
            float. Otherwise, the results are those of the softmax.
        is_causal: whether query i uses keys 0 … i alone, of as many keys as queries.
    """

    heads: int
    key_heads: int
    by_heads: tuple[bool, bool, bool, bool]
    mask_axes: tuple[int | None, ...] = ()
    scale: float | None = None
    is_boolean: bool = False
    is_zero: bool = False
    is_causal: bool = False


def is_faster(match: Match, cx: Context) -> bool:
    """Whether the kernel is faster, by its measured times relative to onnxruntime's (docs/kernels.md).

    onnxruntime 1.31 is as fast as the template, at 1 thread with AVX-512, for attention of many queries that
    is not causal.
    """
    query = match.operands[QUERY]
    assert query is not None
    queries = typical_size(_length(match.operands, QUERY, match.parameters.by_heads, cx)) or 1
    if queries <= _FEW_QUERIES or match.parameters.is_causal:
        return True
    if match.nodes[-1].op_type == "Attention":
        return False
    return queries <= _QUERIES[match.operands[MASK] is not None]


@template("com.microsoft::MultiHeadAttention", is_faster=is_faster)
def multi_head_attention(anchor: ir.Node, cx: Context) -> Match:
    """MultiHeadAttention of separate queries, keys and values, without past."""
    inputs = _inputs(anchor, 10)
    query, key, value, bias, padding, mask = inputs[:6]
    if bias is not None or padding is not None or any(inputs[6:]):
        raise CantFuse("no kernels for attention with a bias, a padding mask or a past")
    attributes = _attributes(anchor)
    causal = bool(attributes.get("unidirectional"))
    if query is None or key is None or value is None or cx.rank(query) != 3:
        raise CantFuse("no kernels for packed queries, keys and values")
    heads = int(attributes["num_heads"])
    by_heads = (False, cx.rank(key) == 4, cx.rank(value) == 4, False)
    scale = attributes.get("scale") or None
    return _match(anchor, cx, (query, key, value, mask), heads, heads, by_heads, scale, causal)


@template("Attention", is_faster=is_faster)
def attention(anchor: ir.Node, cx: Context) -> Match:
    """Attention of opset 23 or newer, without past, of all keys."""
    inputs = _inputs(anchor, 7)
    query, key, value, mask = inputs[:4]
    if any(inputs[4:]):
        raise CantFuse("no kernels for attention with a past or padded keys")
    attributes = _attributes(anchor)
    causal = bool(attributes.get("is_causal"))
    if attributes.get("softcap") or attributes.get("softmax_precision", 1) not in (0, 1):
        raise CantFuse("no kernels for attention with capped scores or another precision")
    if query is None or key is None or value is None:
        raise CantFuse("an operand is missing")
    ranks = {cx.rank(each) for each in (query, key, value)}
    if ranks == {4}:
        heads, key_heads = _static_dim(query, 1, cx), _static_dim(key, 1, cx)
    elif ranks == {3} and "q_num_heads" in attributes and "kv_num_heads" in attributes:
        heads, key_heads = int(attributes["q_num_heads"]), int(attributes["kv_num_heads"])
    else:
        raise CantFuse("the numbers of heads are unknown")
    by_heads = (ranks == {4},) * 4
    scale = attributes.get("scale") or None
    return _match(anchor, cx, (query, key, value, mask), heads, key_heads, by_heads, scale, causal)


def _match(
    anchor: ir.Node,
    cx: Context,
    operands: tuple[ir.Value | None, ...],
    heads: int,
    key_heads: int,
    by_heads: tuple[bool, ...],
    scale: float | None,
    causal: bool,
) -> Match:
    """The match of ``anchor``; raises CantFuse if types or ranks are not supported."""
    if any(value.name for value in anchor.outputs[1:]):
        raise CantFuse("no kernels for attention that returns keys, values or scores")
    if heads < 1 or key_heads < 1 or heads % key_heads:
        raise CantFuse("the heads of queries are not groups of the heads of keys")
    for value, is_by_heads in zip(operands[:MASK], by_heads, strict=False):
        if value is None or cx.dtype(value) is not ir.DataType.FLOAT:
            raise CantFuse("no kernels for attention of other types than float")
        if cx.rank(value) != (4 if is_by_heads else 3):
            raise CantFuse(f"the rank of {value.name!r} is not supported")
    mask = operands[MASK]
    axes: tuple[int | None, ...] = ()
    boolean = False
    if mask is not None:
        rank = cx.rank(mask)
        if rank is None or not 2 <= rank <= 4:
            raise CantFuse(f"the rank of {mask.name!r} is not supported")
        boolean = cx.dtype(mask) is ir.DataType.BOOL
        if not boolean and cx.dtype(mask) is not ir.DataType.FLOAT:
            raise CantFuse("no kernels for masks of other types than float and bool")
        axes = (*(None,) * (4 - rank), *range(rank))
    if causal and (
        mask is not None or _length(operands, QUERY, by_heads, cx) != _length(operands, KEY, by_heads, cx)
    ):
        raise CantFuse("no kernels for causal attention with a mask, or with a past")
    q, k, v, o = by_heads
    is_zero = anchor.op_type == "Attention"  # of ai.onnx, in onnxruntime 1.31
    parameters = AttentionParameters(heads, key_heads, (q, k, v, o), axes, scale, boolean, is_zero, causal)
    return Match("attention", (anchor,), operands, (anchor.outputs[0],), parameters)


def _length(operands: Sequence[ir.Value | None], operand: int, by_heads: Sequence[bool], cx: Context) -> Dim:
    value = operands[operand]
    assert value is not None
    return (cx.shape(value) or ())[2 if by_heads[operand] else 1]


def _inputs(node: ir.Node, count: int) -> list[ir.Value | None]:
    found = [value if value is not None and value.name else None for value in node.inputs]
    return [*found, *(None,) * (count - len(found))]


def _attributes(node: ir.Node) -> dict[str, Any]:
    return {name: attribute.value for name, attribute in node.attributes.items()}


def _static_dim(value: ir.Value, axis: int, cx: Context) -> int:
    dim = (cx.shape(value) or ())[axis]
    if not isinstance(dim, int):
        raise CantFuse(f"the number of heads of {value.name!r} is unknown")
    return dim
