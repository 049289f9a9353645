"""Gather."""

from __future__ import annotations

import numpy as np

from graphopt import ir
from graphopt.rewrite import Builder, Exact, Match, Outcome, rule
from graphopt.rules.building_blocks.axes import axes_of, axis_of, squeeze, unsqueeze


@rule(
    lambda op, x, i, j: op.Gather(op.Gather(x, i.constant(), tag="inner"), j.constant()),
    numerics=Exact,
    proven_exact=True,
)
def collapse_gathers(op: Builder, m: Match, x: ir.Value, i: ir.Value, j: ir.Value) -> Outcome:
    """Gather(Gather(x, i), j) → Gather(x, i[j]), for constant indices along one axis."""
    inner, rank = m.node("inner"), m.rank(x)
    first, second = m.constant(i), m.constant(j)
    if rank is None or first is None or second is None or first.ndim != 1:
        return m.no("rank unknown, or the first Gather changes it", x)
    axis = axis_of(m, inner, rank)
    if axis is None or axis_of(m, m.root, rank) != axis:
        return m.no("they gather along different axes", x)
    if np.any(second >= len(first)) or np.any(second < -len(first)):
        return m.no("an index is out of range", j)
    return op.like(m.root, [x, np.asarray(first[second], np.int64)])


@rule(
    lambda op, xs, i: op.Gather(op.Concat(xs.rest(), tag="concat"), i.constant()),
    numerics=Exact,
    proven_exact=True,
    tags=("onnxscript:fold-gather",),
)
def gather_of_concat(op: Builder, m: Match, xs: tuple[ir.Value, ...], i: ir.Value) -> Outcome:
    """Gather(Concat(*xs), i) → Gather(xs[k], i - offset), for one index that selects from xs[k]."""
    concat, index = m.node("concat").outputs[0], m.constant(i)
    rank = m.rank(concat)
    axis = axis_of(m, m.root, rank)
    if index is None or index.size != 1 or index.ndim > 1:
        return m.no("it gathers more than one index", i)
    if axis is None or axis_of(m, m.node("concat"), rank) != axis:
        return m.no("they work along different axes", concat)
    place = int(index.reshape(()))
    if place < 0:
        xs, place = xs[::-1], -1 - place  # a negative index counts from the end
    for x in xs:
        shape = m.shape(x)
        size = None if shape is None else shape[axis]
        if not isinstance(size, int):
            return m.no("the size of an operand is unknown", x)
        if place < size:
            return _pick(op, m, x, axis, size, place if index >= 0 else size - 1 - place, index.ndim)
        place -= size
    return m.no("the index is out of range", i)


def _pick(op: Builder, m: Match, x: ir.Value, axis: int, size: int, place: int, ndim: int) -> ir.Value:
    """Element ``place`` along ``axis``. A 1-D index (``ndim`` 1) keeps the axis, a scalar removes it."""
    if size == 1:
        return x if ndim else squeeze(op, m, x, [axis])
    return op.like(m.root, [x, np.full((1,) * ndim, place, np.int64)])


@rule(
    lambda op, x, i, a: op.Unsqueeze(op.Gather(x, i.constant(), tag="gather"), a.rest()),
    numerics=Exact,
    proven_exact=True,
    exclusive=True,
)
def gather_keeping_axis(op: Builder, m: Match, x: ir.Value, i: ir.Value) -> Outcome:
    """Unsqueeze(Gather(x, i)) → Gather(x, [i]), for one index."""
    return _regathered(op, m, x, i, rank=0)


@rule(
    lambda op, x, i, a: op.Squeeze(op.Gather(x, i.constant(), tag="gather"), a.rest()),
    numerics=Exact,
    proven_exact=True,
    exclusive=True,
)
def gather_dropping_axis(op: Builder, m: Match, x: ir.Value, i: ir.Value) -> Outcome:
    """Squeeze(Gather(x, [i])) → Gather(x, i), for one index."""
    return _regathered(op, m, x, i, rank=1)


def _regathered(op: Builder, m: Match, x: ir.Value, i: ir.Value, rank: int) -> Outcome:
    index, axis, view = m.constant(i), axis_of(m, m.node("gather"), m.rank(x)), axes_of(m, m.root)
    if index is None or index.ndim != rank or index.size != 1:
        return m.no("it does not gather one index", i)
    if axis is None or view != (axis,):
        return m.no("the view has another axis, or axes are unknown", x)
    return op.like(m.node("gather"), [x, index.reshape((1,) * (1 - rank))])


@rule(lambda op, x, rest: op.Split(x, rest.rest()), numerics=Exact, proven_exact=True)
def gather_instead_of_split(op: Builder, m: Match, x: ir.Value) -> Outcome:
    """Squeeze(Split(x)[i]) → Gather(x, i), if every part has size 1 and is squeezed.

    Each Gather is followed by an Unsqueeze, which ``collapse-views`` removes.
    """
    axis = axis_of(m, m.root, m.rank(x))
    if axis is None or not all(_is_squeezed(m, part, axis) for part in m.root.outputs):
        return m.no("not every part of the Split is squeezed along its axis", x)
    if not any(part.uses() for part in m.root.outputs):
        return m.no("no part is read", x)
    return tuple(
        unsqueeze(op, m, op.Gather(x, np.array(index, np.int64), axis=axis), [axis]) if part.uses() else None
        for index, part in enumerate(m.root.outputs)
    )


def _is_squeezed(m: Match, part: ir.Value, axis: int) -> bool:
    """Whether ``part`` has size 1 along ``axis``, and its only reader is a Squeeze of that axis."""
    shape = m.shape(part)
    if shape is None or shape[axis] != 1:
        return False
    if not part.uses():
        return not part.is_graph_output()
    if not m.only_use(part):
        return False
    ((user, _),) = ((use.node, use.idx) for use in part.uses() if use.node.graph is not None)
    return (
        user.op_type == "Squeeze"
        and user.domain == ""
        and user.graph is m.root.graph
        and axes_of(m, user) == (axis,)
    )
