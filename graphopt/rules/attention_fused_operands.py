"""Factors, biases and Splits of operands that fused attention can include."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from graphopt import ir
from graphopt.analysis import symbolic
from graphopt.rewrite import Builder, Exact, Match, Outcome, fusion
from graphopt.rules.building_blocks.attention.heads import heads_of
from graphopt.rules.building_blocks.axes import axis_of
from graphopt.rules.building_blocks.computed_constants import times_number
from graphopt.rules.building_blocks.dim_options import dim_option
from graphopt.rules.building_blocks.operands import producer_of
from graphopt.rules.building_blocks.reshape_targets import reshape
from graphopt.rules.building_blocks.shape_equality import WIDENED, same_shape

Values = Sequence[ir.Value | None]

#: The bias of the scores among the inputs of MultiHeadAttention after queries, keys and values.
_SCORE_BIAS = 2


@fusion(
    lambda op, a, b, k, more: op.domain(ir.MICROSOFT).MultiHeadAttention(
        op.one_of("Mul", "Div")(a, b, tag="scaled"), k, more.rest()
    ),
    anchors=(),
    tags=("onnxscript:mha-scale",),
)
def scale_into_attention(op: Builder, m: Match, k: ir.Value, more: Values) -> Outcome:
    """MultiHeadAttention(c * q, k, v, scale=s) → MultiHeadAttention(q, k, v, scale=c * s)."""
    factor = times_number(m.node("scaled"))
    if factor is None:
        return m.no("queries are not scaled by one number", m.root.inputs[0])
    query, number = factor
    shape, heads = m.shape(query), m.root.attributes.get("num_heads")
    if shape is None or not same_shape(m, shape, m.shape(m.node("scaled").outputs[0])):
        return m.no(WIDENED, query)
    if len(shape) != 3 or not isinstance(shape[2], int) or heads is None or heads.is_ref() or number <= 0:
        return m.no("queries are not [batch, length, heads * size], or the scale is not positive", query)
    if len(more) > 1 and more[1] is not None:
        return m.no("a bias is added after the scale", more[1])
    given = m.attribute(m.root, "scale")
    scale = float(given) if given else 1 / math.sqrt(shape[2] // int(heads.value))
    return op.fused(op.like(m.root, [query, k, *more], scale=scale * number))


@fusion(
    lambda op, q, k, v, more: op.domain(ir.MICROSOFT).MultiHeadAttention(q, k, v, more.rest()),
    numerics=Exact,
    exclusive=False,
    anchors=(),
    tags=("onnxscript:mha-bias",),
)
def bias_into_attention(
    op: Builder, m: Match, q: ir.Value, k: ir.Value, v: ir.Value, more: Values
) -> Outcome:
    """MultiHeadAttention(q + a, k + b, v + c) → MultiHeadAttention(q, k, v, Concat(a, b, c)).

    Biases of products are unchanged: onnxruntime fuses a product with its bias.
    """
    if more and more[0] is not None:
        return m.no("it already has a bias", more[0])
    shapes = [m.shape(value) for value in (q, k, v)]
    if any(shape is None or len(shape) != 3 for shape in shapes):
        return m.no("queries, keys or values are not [batch, length, heads * size]", q)
    found, biases = [], []
    for value, shape in zip((q, k, v), shapes, strict=True):
        width, dtype = None if shape is None else shape[2], m.dtype(value)
        if not isinstance(width, int) or dtype is None:
            return m.no("the size of heads is unknown", value)
        x, bias = _without_bias(m, value, width) or (value, None)
        found.append(x)
        biases.append(np.zeros(width, dtype.numpy()) if bias is None else bias)
    added = [bias for bias in biases if isinstance(bias, ir.Value)]
    if not added:
        return m.no("queries, keys and values have no bias, or one that is added to a product", q)
    arrays = [m.constant(bias) if isinstance(bias, ir.Value) else bias for bias in biases]
    known = [array for array in arrays if array is not None]
    if len(known) == len(biases):
        return op.fused(op.like(m.root, [*found, np.concatenate(known), *more[1:]]))
    if len(added) == 1:
        return m.no("a single computed bias would have to be concatenated with zeros", added[0])
    parts = [bias if isinstance(bias, ir.Value) else op.constant(bias) for bias in biases]
    return op.fused(op.like(m.root, [*found, op.Concat(*parts, axis=0), *more[1:]]))


def _without_bias(m: Match, value: ir.Value, width: int) -> tuple[ir.Value, ir.Value] | None:
    """(x, bias) if ``value`` is x plus a bias of ``width`` and has one reader."""
    node = producer_of(value, "Add", graph=m.graph)
    if node is None or not m.only_use(value):
        return None
    for x, bias in (node.inputs, node.inputs[::-1]):
        if x is None or bias is None or m.shape(bias) != (width,):
            continue
        if producer_of(x, "MatMul") is not None:
            return None  # onnxruntime fuses the bias with the product
        if same_shape(m, m.shape(x), m.shape(value)):
            return x, bias
    return None


@fusion(
    lambda op, x, sizes, more: op.domain(ir.MICROSOFT).GroupQueryAttention(
        *op.Split(x, sizes.rest(), outputs=3, tag="parts"), more.rest()
    ),
    numerics=Exact,
    anchors=(),
    tags=("onnxscript:packed-qkv",),
)
def packed_projections(op: Builder, m: Match, x: ir.Value, more: Values) -> Outcome:
    """GroupQueryAttention(*Split(qkv)) → GroupQueryAttention(qkv)."""
    parts = m.node("parts")
    rank = m.rank(x)
    if rank != 3 or axis_of(m, parts, rank) != 2:
        return m.no("the input of the Split is not [batch, length, all heads * size]", x)
    widths = [(m.shape(value) or (None,) * 3)[2] for value in parts.outputs]
    heads = [m.attribute(m.root, name) for name in ("num_heads", "kv_num_heads")]
    known = all(isinstance(number, int) for number in (*widths, *heads))
    if not known or widths[1] != widths[2] or widths[0] * heads[1] != widths[1] * heads[0]:
        return m.no("the numbers of heads or their sizes are unknown or differ", x)
    inputs = [x, None, None, *more]
    return op.fused(
        op.node(
            m.root.op_type, inputs, dict(m.root.attributes), domain=m.root.domain, outputs=len(m.root.outputs)
        )
    )


def _attention_of_repeated_keys(
    op: Any, q: Any, k: Any, v: Any, more: Any, ka: Any, ke: Any, kr: Any, va: Any, ve: Any, vr: Any
) -> Any:
    """MultiHeadAttention whose keys and values are repeated for groups of query heads."""
    keys = op.Reshape(op.Expand(op.one_of("Unsqueeze", "Reshape")(k, ka.rest()), ke), kr, tag="keys")
    values = op.Reshape(op.Expand(op.one_of("Unsqueeze", "Reshape")(v, va.rest()), ve), vr, tag="values")
    return op.domain(ir.MICROSOFT).MultiHeadAttention(q, keys, values, more.rest())


@fusion(_attention_of_repeated_keys, exclusive=False, anchors=("Expand",))
def group_queries(op: Builder, m: Match, q: ir.Value, more: Values) -> Outcome:
    """MultiHeadAttention(q, repeat(k), repeat(v)) → MultiHeadAttention(groups(q), k, v), for one position.

    The queries of the heads that share keys become further queries of one head, so that the keys and values
    are read once, and not copied. For several positions, each key is read several times in any case, and the
    operator, whose heads run in parallel, would use fewer threads.
    """
    shape = m.shape(q)
    keys, values = (heads_of(m, m.node(name).outputs[0]) for name in ("keys", "values"))
    if keys is None or values is None or keys.shared is None or values.shared is None:
        return m.no("keys and values are not repeated for groups of heads", q)
    (_, heads, _, size), (_, count, _, value_size) = keys.shape, values.shared.shape
    sizes = [heads, size, count, value_size]
    if not all(isinstance(number, int) for number in sizes) or keys.shared.shape[1] != count:
        return m.no("keys and values are repeated for other heads", q)
    if shape is None or len(shape) != 3 or shape[1] != 1:
        name = None if shape is None or len(shape) != 3 else symbolic.declared_name(shape[1])
        hint = None if name is None else f"{dim_option('--dim', name, '1')} (for a model of decoding steps)"
        return m.no("there may be several query positions, for which heads run in parallel", q, hint=hint)
    others = [value for index, value in enumerate(more) if index != _SCORE_BIAS]
    if any(value is not None for value in others) or any(map(ir.is_read, m.root.outputs[1:])):
        return m.no("it has a bias, a mask or a past besides the bias of scores", q)
    assert isinstance(heads, int) and isinstance(size, int) and isinstance(count, int)
    assert isinstance(value_size, int)
    groups = heads // count
    apart = op.Transpose(reshape(op, m, q, [0, count, groups, size]), perm=[0, 2, 1, 3])
    inputs = [reshape(op, m, apart, [0, groups, count * size]), keys.shared.as_split(op, m)]
    inputs.append(values.shared.as_split(op, m))
    if len(more) > _SCORE_BIAS and (bias := more[_SCORE_BIAS]) is not None:
        dims = m.shape(bias)
        if dims is None or len(dims) != 4 or dims[1] not in (1, heads) or dims[2] != 1:
            return m.no("the bias of scores has an unknown shape", bias)
        if dims[1] == 1:
            bias = op.Expand(bias, np.array([1, 1, groups, 1]))
        else:
            bias = reshape(op, m, bias, [0, count, groups, 0])
        inputs += [None, None, bias]  # type: ignore[list-item]
    result = op.fused(op.like(m.root, inputs, num_heads=count))
    by_groups = reshape(op, m, result, [0, groups, count, value_size])
    return reshape(op, m, op.Transpose(by_groups, perm=[0, 2, 1, 3]), [0, 1, heads * value_size])
