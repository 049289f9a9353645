"""Rotary position embedding: pairs of elements rotated by angles that grow with the position.

Sizes: B batches, N heads, S positions, D elements of a head.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from graphopt import ir
from graphopt.analysis import symbolic
from graphopt.context import Dim
from graphopt.rewrite import Builder, Match, Outcome, fusion
from graphopt.rewrite.match import Refused
from graphopt.rules.building_blocks.attention.heads import Heads, heads_of, split_rows
from graphopt.rules.building_blocks.axes import axis_of
from graphopt.rules.building_blocks.dim_options import dim_option
from graphopt.rules.building_blocks.kernel_availability import kernel_refusal
from graphopt.rules.building_blocks.operands import producer_of
from graphopt.rules.building_blocks.reshape_targets import reshape
from graphopt.rules.building_blocks.rotary_tables import is_doubled, tables_of
from graphopt.rules.building_blocks.shape_equality import WIDENED, same_shape
from graphopt.rules.building_blocks.slices_and_pads import Range, slice_, slice_ranges
from graphopt.util.lazy_dataclass import dataclass

_ROTARY = "RotaryEmbedding"
#: The opset versions that introduced RotaryEmbedding, and ``allowzero`` of Reshape.
_STANDARD_SINCE, _ALLOWS_ZERO = 23, 14
#: Attributes of a RotaryEmbedding of a part of each head.
_ELSEWHERE = ("rotary_embedding_dim", "scale", "is_packed_batching")


def _rotated(op: Any, x: Any, c: Any, s: Any, a: Any, b: Any) -> Any:
    """x * cos + rotate_half(x) * sin, where rotate_half swaps the halves, then negates the first."""
    return op.Add(op.Mul(x, c), op.Mul(op.Concat(op.Neg(b), a, tag="joined"), s))


def _rotated_pairs(op: Any, x: Any, c: Any, s: Any, a: Any, b: Any, axes: Any, more: Any, shape: Any) -> Any:
    """The same sum if the elements of each pair are adjacent."""
    pairs = op.Concat(op.Unsqueeze(op.Neg(b), axes.rest()), op.Unsqueeze(a, more.rest()), tag="paired")
    return op.Add(op.Mul(x, c), op.Mul(op.Reshape(pairs, shape), s))


def _products(op: Any, a: Any, b: Any, c: Any, s: Any) -> tuple[Any, Any]:
    return op.Sub(op.Mul(a, c), op.Mul(b, s)), op.Add(op.Mul(b, c), op.Mul(a, s))


def _by_halves(op: Any, a: Any, b: Any, c: Any, s: Any) -> Any:
    """The two halves computed separately, with half as many cosines and sines."""
    return op.Concat(*_products(op, a, b, c, s), tag="joined")


def _by_pairs(op: Any, a: Any, b: Any, c: Any, s: Any, axes: Any, more: Any, shape: Any) -> Any:
    """The two elements of each pair computed separately."""
    first, second = _products(op, a, b, c, s)
    pairs = op.Concat(op.Unsqueeze(first, axes.rest()), op.Unsqueeze(second, more.rest()), tag="paired")
    return op.Reshape(pairs, shape)


@dataclass(frozen=True)
class Part:
    """The elements at ``indices`` of the last axis of ``source``."""

    source: ir.Value
    indices: range


@fusion(
    _rotated,
    _rotated_pairs,
    _by_halves,
    _by_pairs,
    anchors=("Neg", "Cos"),
    tags=("onnxscript:rotary-embedding", "onnxscript:cos-sin-cache"),
)
def rotary_embedding(
    op: Builder, m: Match, a: ir.Value, b: ir.Value, c: ir.Value, s: ir.Value, x: ir.Value | None
) -> Outcome:
    """x * cos + rotate_half(x) * sin → RotaryEmbedding(x, cos, sin); likewise for pairs of elements."""
    paired = any(node.op_type == "Unsqueeze" for node in m.nodes)
    whole = _rotated_tensor(m, a, b, x, pairs=paired)
    joined = m.node("paired" if paired else "joined")
    rank = m.rank(joined.outputs[0])
    is_last = rank is not None and axis_of(m, joined, rank) == rank - 1
    if not is_last or (paired and not _pairs_up(m, joined, whole)):
        return m.no("it rotates another axis", joined.outputs[0])
    doubled = None if x is None else "pairs" if paired else "halves"
    if not same_shape(m, m.shape(m.root.outputs[0]), _shape(m, whole)):
        return m.no(WIDENED, whole.source)
    for table in (c, s):
        if doubled is not None and not is_doubled(m, table, pairs=paired):
            return m.no("cos and sin do not provably hold each number twice", table)
    return _rotary_operator(op, m, whole, c, s, doubled=doubled, pairs=paired)


def _rotated_tensor(m: Match, a: ir.Value, b: ir.Value, x: ir.Value | None, *, pairs: bool) -> Part:
    """The rotated tensor; ``a`` and ``b`` are the first and second elements of its pairs."""
    first, second = _part(m, a), _part(m, b)
    if first is None or second is None or first.source is not second.source or not first.indices:
        m.refuse("its parts are not halves", b)
    start, size = first.indices[0], len(first.indices)
    step, apart = (2, 1) if pairs else (1, size)
    expected = [range(at, at + step * size, step) for at in (start, start + apart)]
    if [first.indices, second.indices] != expected or first.indices.step != second.indices.step:
        m.refuse("its parts are not halves", b)
    whole = Part(first.source, range(start, start + 2 * size))
    if x is not None and not _is_part(m, x, whole):
        m.refuse("its parts belong to another tensor", x)
    return whole


def _is_part(m: Match, x: ir.Value, part: Part) -> bool:
    """Whether ``x`` is ``part``: the whole source, or an equal slice of it."""
    if x is part.source:
        return len(part.indices) == (m.shape(x) or (None,))[-1]
    return _part(m, x) == part


def _part(m: Match, value: ir.Value) -> Part | None:
    """``value`` as a part of its source along the last axis."""
    size = (m.shape(value) or (None,))[-1]
    if not isinstance(size, int):
        return None
    node, indices = producer_of(value), range(size)
    if node is None or node.inputs[:1] in ((), (None,)):
        return Part(value, indices)
    source = node.inputs[0]
    assert source is not None
    rank, whole = m.rank(source), (m.shape(source) or (None,))[-1]
    if rank is None or not isinstance(whole, int):
        return Part(value, indices)
    if node.op_type == "Split" and axis_of(m, node, rank) == rank - 1:
        sizes = [(m.shape(output) or (None,))[-1] for output in node.outputs]
        before = ir.all_ints(sizes[: node.outputs.index(value)])
        return (
            Part(value, indices) if before is None else Part(source, range(sum(before), sum(before) + size))
        )
    if node.op_type == "Slice":
        ranges = slice_ranges(m, node)
        if ranges is not None and len(ranges) == 1 and ranges[0].axis == rank - 1:
            return Part(source, ranges[0].of(whole))
    return Part(value, indices)


def _pairs_up(m: Match, joined: ir.Node, whole: Part) -> bool:
    """Whether the elements of pairs are adjacent, and the axis of pairs is merged with theirs."""
    shape = m.shape(joined.outputs[0])
    return shape is not None and same_shape(m, shape[:-1], (*_shape(m, whole)[:-1], len(whole.indices) // 2))


def _shape(m: Match, part: Part) -> tuple[Dim, ...]:
    return (*(m.shape(part.source) or ())[:-1], len(part.indices))


def _rotary_operator(
    op: Builder, m: Match, whole: Part, c: ir.Value, s: ir.Value, *, doubled: str | None, pairs: bool
) -> Outcome:
    """The operator, given tables of [positions, D / 2]."""
    shape = _shape(m, whole)
    if len(shape) != 4:
        return m.no("it is not [batch, heads, length, an even size]", whole.source)
    table = m.shape(c)
    if table is None or not same_shape(m, table, m.shape(s)):
        return m.no("the shapes of cos and sin differ, or are unknown", c)
    full = (1,) * (4 - len(table)) + table
    width = len(whole.indices) // (1 if doubled else 2)
    axis = next((axis for axis in (2, 1) if _fits(m, full, shape, axis, width)), None)
    if axis is None:
        return m.no("cos and sin do not have one row per position, shared by all heads", c)
    domain = _domain(m, whole, c, full, shape)
    shared, standard = full[0] == 1, domain == ""
    tables: list[Any] = tables_of(op, m, (c, s), doubled=doubled, positions=axis if standard else None)
    data, heads = _rows_and_heads(op, m, whole, shape, axis)
    attributes: dict[str, Any] = {"interleaved": 1} if pairs else {}
    if standard:
        if heads is not None or axis == 1:
            attributes["num_heads"] = shape[1 if axis == 2 else 2]
        inputs = [data, *tables]
    else:
        rows = heads is not None or axis == 1
        sized, length = (data, 1) if rows else (whole.source, 2)  # no Slice that only a Shape would read
        at = np.array([0]) if shared else _position_ids(op, m, tables[0], sized, (0, length))
        inputs = [data, at, *tables]
    rotated = op.fused(op.node(_ROTARY, inputs, attributes, domain=domain))
    if heads is not None:
        return split_rows(op, m, rotated, shape)
    return rotated if axis == 2 else reshape(op, m, rotated, [0, 0, *_static(shape[2:])])


def _domain(m: Match, whole: Part, c: ir.Value, table: tuple[Dim, ...], shape: tuple[Dim, ...]) -> str:
    """The domain of the operator that accepts such tables."""
    shared = table[0] == 1
    refusal = kernel_refusal(m, _ROTARY, whole.source)
    standard = kernel_refusal(m, _ROTARY, whole.source, domain="", since=_STANDARD_SINCE) is None
    alike = m.cx.facts.dim_equal(table[0], shape[0])
    if refusal is None and (
        shared or (not standard and symbolic.known_nonzero(shape[0]) and m.version >= _ALLOWS_ZERO)
    ):
        return ir.MICROSOFT
    if standard and alike:
        return ""
    if refusal is not None:
        raise Refused(refusal)
    batch = symbolic.declared_name(shape[0])
    hint = "use the same positions for the whole batch; --dim fixes a batch size of 1"
    if batch is not None:
        hint += f", {dim_option('--dim-range', batch, '1:')} declares it nonempty"
    m.refuse("the angles differ within the batch", c, hint=hint)


def _fits(m: Match, table: tuple[Dim, ...], shape: tuple[Dim, ...], axis: int, width: int) -> bool:
    """Whether a table [B or 1, …, S, …, width] has positions along ``axis``, and is equal for all heads."""
    equal = m.cx.facts.dim_equal
    batch = table[0] == 1 or equal(table[0], shape[0])
    return batch and equal(table[axis], shape[axis]) and table[3 - axis] == 1 and table[3] == width


def _position_ids(op: Builder, m: Match, rows: Any, data: ir.Value, axes: tuple[int, int]) -> ir.Value:
    """The row of the tables for each batch and position, [B, S]: the sizes of ``data`` along ``axes``."""
    shape = m.shape(data)
    wanted = None if shape is None else ir.all_ints([shape[axis] for axis in axes])
    if wanted is not None:
        return op.constant(np.arange(wanted[0] * wanted[1]).reshape(wanted))
    count = op.Gather(op.Shape(rows), np.array(0))
    counted = op.Range(np.array(0), count, np.array(1))
    return op.Reshape(counted, op.Gather(op.Shape(data), np.array(axes)), allowzero=1)


def _static(dims: tuple[Dim, ...]) -> tuple[int, ...]:
    """``dims``, which are known to be numbers."""
    sizes = ir.all_ints(dims)
    assert sizes is not None
    return sizes


def _rows_and_heads(
    op: Builder, m: Match, whole: Part, shape: tuple[Dim, ...], axis: int
) -> tuple[ir.Value, Heads | None]:
    """The rotated tensor, as rows [B, S, N * D] if they exist, and its heads if it must be split."""
    (size,) = _static((m.shape(whole.source) or ())[-1:])
    if len(whole.indices) < size:
        source = slice_(op, m, whole.source, [Range(3, whole.indices[0], whole.indices[-1] + 1)])
        heads = None
    else:
        source = whole.source
        heads = heads_of(m, source) if axis == 2 else None
    if axis == 1:
        return reshape(op, m, source, [0, 0, math.prod(_static(shape[2:]))]), None
    if heads is not None and heads.rows is not None:
        return heads.rows.built(op, m), heads
    return source, None


@fusion(
    lambda op, x, rest, at, c, s: op.Concat(
        op.domain(ir.MICROSOFT).RotaryEmbedding(x, at, c, s, tag="rotary"), rest
    ),
    lambda op, x, rest, c, s: op.Concat(op.RotaryEmbedding(x, c, s, tag="rotary"), rest),
    anchors=(),
    tags=("onnxscript:partial-rotary-embedding",),
)
def partial_rotary_embedding(
    op: Builder, m: Match, x: ir.Value, rest: ir.Value, at: ir.Value | None, c: ir.Value, s: ir.Value
) -> Outcome:
    """Concat(RotaryEmbedding(x[:k]), x[k:]) → RotaryEmbedding(x, rotary_embedding_dim=k)."""
    node = m.node("rotary")
    rotated, other = _part(m, x), _part(m, rest)
    if rotated is None or other is None or rotated.source is not other.source:
        return m.no("it is not concatenated with the remaining elements", rest)
    shape = m.shape(rotated.source)
    if shape is None or len(shape) != 4 or not isinstance(shape[1], int) or not isinstance(shape[3], int):
        return m.no("it is not [batch, heads, length, size]", rotated.source)
    size = len(rotated.indices)
    if axis_of(m, m.root, 4) != 3 or (rotated.indices, other.indices) != (range(size), range(size, shape[3])):
        return m.no("it is not concatenated with the remaining elements", rest)
    if any(node.attributes.get(name) is not None for name in _ELSEWHERE):
        return m.no("it is already partial, or scales", x)
    attributes = {"num_heads": shape[1], "rotary_embedding_dim": size}
    if (kept := node.attributes.get("interleaved")) is not None:
        attributes["interleaved"] = kept.value
    inputs = [rotated.source, *([] if at is None else [at]), c, s]
    return op.fused(op.node(_ROTARY, inputs, attributes, domain=node.domain))


@fusion(
    lambda op, x, at, c, s: op.domain(ir.MICROSOFT).RotaryEmbedding(x, at, c, s),
    lambda op, x, c, s, more: op.RotaryEmbedding(x, c, s, more.rest()),
    exclusive=False,
    anchors=(),
)
def rotary_embedding_of_rows(
    op: Builder,
    m: Match,
    x: ir.Value,
    at: ir.Value | None,
    c: ir.Value,
    s: ir.Value,
    more: tuple[ir.Value | None, ...] | None,
) -> Outcome:
    """RotaryEmbedding(split(x)) → split(RotaryEmbedding(x)), on rows [B, S, N * D], as attention reads it."""
    heads = heads_of(m, x) if m.rank(x) == 4 else None
    if heads is None or heads.rows is None or not isinstance(heads.shape[1], int):
        return m.no("it is not split from rows of all heads", x)
    before = [] if at is None else [at]
    inputs = [heads.rows.built(op, m), *before, c, s, *(more or ())]
    attributes = {**m.root.attributes, "num_heads": heads.shape[1]}
    rotated = op.fused(op.node(_ROTARY, inputs, attributes, domain=m.root.domain))
    return split_rows(op, m, rotated, heads.shape)
