"""Chains that compute shapes, as exporters write them for ``x.size(0)`` or ``x.shape[1:]``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphopt import ir
from graphopt.ops import traits
from graphopt.rewrite import Builder, Exact, Match, Outcome, rule
from graphopt.rules.building_blocks.axes import axis_of, perm_of
from graphopt.rules.building_blocks.operands import int_of, operand, producer_of
from graphopt.rules.building_blocks.slices_and_pads import INT64_MAX, slice_ranges
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class DimsOf:
    """A 1-D tensor of the sizes of ``source`` along ``axes``."""

    source: ir.Value
    axes: tuple[int, ...]


def dims_of(m: Match, value: ir.Value) -> DimsOf | None:
    """The dims of a tensor that ``value`` contains, if it is a Shape, or a Gather or Slice of a Shape."""
    node = producer_of(value, graph=m.graph)
    if node is None or not node.inputs or node.inputs[0] is None:
        return None
    data = node.inputs[0]
    if node.op_type == "Shape":
        return _shape(m, node, data)
    if node.op_type not in ("Gather", "Slice"):
        return None
    shape = producer_of(data, "Shape")
    if shape is None or shape.inputs[0] is None:
        return None
    whole = _shape(m, shape, shape.inputs[0])
    if whole is None:
        return None
    if node.op_type == "Slice":
        ranges = slice_ranges(m, node)
        return (
            None
            if ranges is None
            else DimsOf(whole.source, tuple(whole.axes[i] for i in ranges[0].of(len(whole.axes))))
        )
    index = m.constant(operand(node, 1))
    if (
        index is None
        or index.ndim != 1
        or np.any(index >= len(whole.axes))
        or np.any(index < -len(whole.axes))
    ):
        return None
    return DimsOf(whole.source, tuple(whole.axes[i] for i in index))


def _shape(m: Match, node: ir.Node, source: ir.Value) -> DimsOf | None:
    rank = m.rank(source)
    start, end = int_of(m, node, "start", 0), int_of(m, node, "end", INT64_MAX)
    if rank is None:
        return None
    return DimsOf(source, tuple(range(rank))[start:end])


def write_dims(op: Builder, m: Match, dims: DimsOf) -> ir.Value | None:
    """One node that computes ``dims``, perhaps from an existing Shape; ``None`` if two nodes are needed."""
    axes, rank = dims.axes, m.rank(dims.source)
    contiguous = axes == tuple(range(axes[0], axes[0] + len(axes))) if axes else False
    if contiguous and len(axes) == rank:
        return op.Shape(dims.source)
    return op.Shape(dims.source, **_bounds(axes, rank)) if contiguous and m.version >= 15 else None


def _bounds(axes: Sequence[int], rank: int | None) -> dict[str, int]:
    bounds = {} if axes[0] == 0 else {"start": axes[0]}
    return bounds if axes[-1] + 1 == rank else {**bounds, "end": axes[-1] + 1}


@rule(
    lambda op, x, a: op.one_of("Gather", "Slice")(op.Shape(x), a.rest()),
    numerics=Exact,
    proven_exact=True,
    tags=("onnxoptimizer:eliminate_shape_gather", "onnxoptimizer:eliminate_slice_after_shape"),
)
def part_of_shape(op: Builder, m: Match, x: ir.Value) -> Outcome:
    """Gather(Shape(x), [a, a + 1]) → Shape(x, start=a, end=a + 2); likewise Slice (opset 15)."""
    dims = dims_of(m, m.root.outputs[0])
    if dims is None:
        return m.no("rank or indices unknown", x)
    if not dims.axes:
        return m.no("it selects nothing", x)
    written = write_dims(op, m, dims)
    return m.no("the dims are not adjacent, or the opset is below 15", x) if written is None else written


@rule(lambda op, xs: op.Concat(xs.rest()), numerics=Exact, proven_exact=True, tags=("onnxslim:concat-shape",))
def join_dims(op: Builder, m: Match, xs: tuple[ir.Value, ...]) -> Outcome:
    """Concat(Shape(x)[a:b], Shape(x)[b:c]) → Shape(x)[a:c]."""
    pieces = [dims_of(m, x) for x in xs]
    joined: list[ir.Value] = []
    at = 0
    while at < len(xs):
        end, piece = at + 1, pieces[at]
        while piece is not None and end < len(xs) and (other := pieces[end]) is not None:
            if other.source is not piece.source:
                break
            piece, end = DimsOf(piece.source, piece.axes + other.axes), end + 1
        written = None
        if piece is not None and end > at + 1 and any(m.only_use(x) for x in xs[at:end]):
            written = _write(op, m, piece, xs[at])
        joined.extend(xs[at:end] if written is None else [written])
        at = end
    if len(joined) == len(xs):
        return m.no("no adjacent operands are dims of one tensor")
    return joined[0] if len(joined) == 1 else op.like(m.root, joined)


def _write(op: Builder, m: Match, dims: DimsOf, first: ir.Value) -> ir.Value | None:
    """One node that computes ``dims``, perhaps from the Shape that ``first`` reads."""
    written = write_dims(op, m, dims)
    if written is not None:
        return written
    node = first.producer()
    assert node is not None
    shape = node.inputs[0] if node.op_type in ("Gather", "Slice") else first
    whole = None if shape is None else dims_of(m, shape)
    if whole is None or not set(dims.axes) <= set(whole.axes):
        return None
    return op.Gather(shape, np.array([whole.axes.index(axis) for axis in dims.axes], np.int64))


_ARITHMETIC = ("Add", "Div", "Mul", "Sub")
#: Maximum depth of arithmetic that is analyzed.
_MAX_DEPTH = 4


@rule(
    lambda op, a, b, rest: op.one_of("Unsqueeze", "Reshape")(op.one_of(*_ARITHMETIC)(a, b), rest.rest()),
    numerics=Exact,
    proven_exact=True,
    exclusive=True,
)
def vector_arithmetic(op: Builder, m: Match, a: ir.Value, b: ir.Value) -> Outcome:
    """Unsqueeze(Shape(x)[0] * c) → Shape(x)[0:1] * [c]: arithmetic on vectors in place of scalars."""
    vector, number = m.root.outputs[0], m.root.inputs[0]
    assert number is not None
    if ir.all_ints(m.shape(vector)) != (1,) or ir.all_ints(m.shape(number)) != ():
        return m.no("it does not turn a scalar into a vector", vector)
    if not (_is_of_dims(m, a, _MAX_DEPTH) and _is_of_dims(m, b, _MAX_DEPTH)):
        return m.no("it is not computed from dims alone", number)
    return _as_vector(op, m, number)


def _is_of_dims(m: Match, number: ir.Value, depth: int) -> bool:
    """Whether the scalar ``number`` is a constant, or has one reader and is computed from dims of tensors."""
    if m.constant(number) is not None:
        return True
    node = producer_of(number, graph=m.graph)
    if depth == 0 or node is None or not m.only_use(number):
        return False
    operands = [value for value in node.inputs if value is not None]
    if node.op_type in _ARITHMETIC:
        return all(_is_of_dims(m, value, depth - 1) for value in operands)
    index = m.constant(operand(node, 1))
    is_dim = node.op_type == "Gather" and index is not None and index.ndim == 0
    return is_dim and producer_of(operands[0], "Shape") is not None


def _as_vector(op: Builder, m: Match, number: ir.Value) -> ir.Value:
    """The scalar ``number`` as a vector of one element."""
    constant = m.constant(number)
    if constant is not None:
        return op.constant(constant.reshape(1))
    node = number.producer()
    assert node is not None
    if node.op_type == "Gather":
        index = m.constant(node.inputs[1])
        assert index is not None
        return op.Gather(node.inputs[0], index.reshape(1))
    return op.like(node, [_as_vector(op, m, value) for value in node.inputs if value is not None])


_REARRANGES = (*traits.RESHAPES, "Transpose", "Slice", "Gather")
#: Maximum lengths of vectors and chains that are analyzed.
_MAX_LENGTH, _MAX_STEPS = 64, 8


@rule(
    lambda op, x, rest: op.one_of(*_REARRANGES)(x, rest.rest()),
    numerics=Exact,
    proven_exact=True,
    producers=("Concat", *_REARRANGES),
)
def rearranged_concat(op: Builder, m: Match, x: ir.Value) -> Outcome:
    """Slice(Concat(a, b, c)) → Concat(b, c), for operators that select and reorder small integer vectors.

    Exporters reverse the pads of ``pad`` this way.
    """
    vector = m.root.outputs[0]
    if m.rank(vector) != 1 or m.dtype(vector) not in (ir.DataType.INT64, ir.DataType.INT32):
        return m.no("not a vector of integers", vector)
    steps = [m.root]
    while len(steps) < _MAX_STEPS and (node := steps[-1].inputs[0].producer()) is not None:  # type: ignore[union-attr]
        if node.domain or node.graph is not m.root.graph or not m.only_use(node.outputs[0]):
            break
        if node.op_type == "Concat":
            parts = [value for value in node.inputs if value is not None]
            order = _element_origins(m, parts, steps[::-1])
            pieces = None if order is None else _pieces(op, m, parts, order)
            if not pieces:
                break
            return pieces[0] if len(pieces) == 1 else op.Concat(*pieces, axis=0)
        if node.op_type not in _REARRANGES:
            break
        steps.append(node)
    return m.no("it does not reorder whole operands of a Concat without other readers", x)


def _element_origins(
    m: Match, parts: Sequence[ir.Value], steps: Sequence[ir.Node]
) -> list[tuple[int, int]] | None:
    """For each element of the result of ``steps``, its part and its position in that part."""
    lengths = [ir.all_ints(m.shape(part)) for part in parts]
    if any(length is None or len(length) != 1 for length in lengths):
        return None
    elements = [(i, at) for i, length in enumerate(lengths) if length is not None for at in range(length[0])]
    if len(elements) > _MAX_LENGTH:
        return None
    index: np.ndarray | None = np.arange(len(elements))
    for node in steps:
        index = None if index is None else _rearranged(m, node, index)
    return None if index is None else [elements[at] for at in index.tolist()]


def _rearranged(m: Match, node: ir.Node, index: np.ndarray) -> np.ndarray | None:
    """The result of ``node`` applied to ``index``."""
    match node.op_type:
        case "Transpose":
            perm = perm_of(m, node)
            return None if perm is None else index.transpose(perm)
        case "Slice":
            ranges = slice_ranges(m, node)
            for taken in ranges or ():
                index = index.take(list(taken.of(index.shape[taken.axis])), axis=taken.axis)
            return None if ranges is None else index
        case "Gather":
            picks, axis = m.constant(operand(node, 1)), axis_of(m, node, index.ndim)
            if (
                picks is None
                or axis is None
                or np.any(picks >= index.shape[axis])
                or np.any(picks < -index.shape[axis])
            ):
                return None
            return index.take(picks, axis=axis)
    shape = ir.all_ints(m.shape(node.outputs[0]))
    return None if shape is None or np.prod(shape, dtype=int) != index.size else index.reshape(shape)


def _pieces(
    op: Builder, m: Match, parts: Sequence[ir.Value], order: Sequence[tuple[int, int]]
) -> list[ir.Value] | None:
    """The operands of a Concat of the elements at ``order``; ``None`` if that requires a Slice."""
    pieces: list[ir.Value | list[np.generic]] = []
    at = 0
    while at < len(order):
        part, element = order[at]
        constant, length = m.constant(parts[part]), (m.shape(parts[part]) or (0,))[0]
        if constant is not None:
            if not pieces or not isinstance(pieces[-1], list):
                pieces.append([])
            pieces[-1].append(constant[element])  # type: ignore[union-attr]
            at += 1
        elif isinstance(length, int) and list(order[at : at + length]) == [(part, i) for i in range(length)]:
            pieces.append(parts[part])
            at += length
        else:
            return None
    return [op.constant(np.array(piece)) if isinstance(piece, list) else piece for piece in pieces]
