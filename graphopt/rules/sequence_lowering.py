"""Lowering of sequences to tensors, at the cost of more nodes."""

from __future__ import annotations

import numpy as np

from graphopt import ir
from graphopt.rewrite import Builder, Exact, Match, Outcome, rule
from graphopt.rules.building_blocks.axes import axis_of, squeeze, unsqueeze
from graphopt.rules.sequence import split_of

#: Operators that read or change a sequence and can be lowered if its tensors are known.
_LOWERED = ("SequenceAt", "SequenceLength", "ConcatFromSequence", "SequenceInsert", "SequenceErase")


@rule(
    lambda op, xs: op.ConcatFromSequence(op.SequenceConstruct(xs.rest()), new_axis=1),
    numerics=Exact,
    pass_="lower-sequences",
)
def stack_constructed_sequence(op: Builder, m: Match, xs: tuple[ir.Value, ...]) -> Outcome:
    """ConcatFromSequence([x, y], new_axis=1) → Concat(Unsqueeze(x), Unsqueeze(y))."""
    rank = m.rank(xs[0])
    axis = None if rank is None else axis_of(m, m.root, rank + 1)
    if axis is None:
        return m.no("the rank or the axis is unknown", xs[0])
    return op.Concat(*(unsqueeze(op, m, x, [axis]) for x in xs), axis=axis)


@rule(lambda op, x, s: op.SplitToSequence(x, s.optional()), numerics=Exact, pass_="lower-sequences")
def construct_split_sequence(op: Builder, m: Match, x: ir.Value, s: ir.Value | None) -> Outcome:
    """SplitToSequence(x) → SequenceConstruct(*Split(x)), for parts of known sizes.

    Only if all readers of the sequence can then be lowered, and at least one reader needs all parts.
    """
    readers = list(ir.readers(m.root.outputs[0]))
    if m.root.outputs[0].is_graph_output() or any(not _lowers(m, reader) for reader in readers):
        return m.no("the sequence itself is needed")
    if all(reader.op_type in _LOWERED[:2] for reader in readers):
        return m.no("each part is read by its own Slice")
    axis, sizes = split_of(m, m.root)
    if axis is None or not sizes:
        return m.no("the size of the axis or of the parts is unknown", x)
    if m.version >= 13:
        parts = op.Split(x, np.array(sizes, np.int64), outputs=len(sizes), axis=axis)
    else:
        parts = op.Split(x, outputs=len(sizes), axis=axis, split=list(sizes))
    parts = (parts,) if len(sizes) == 1 else parts
    if s is None and m.attribute(m.root, "keepdims") == 0:
        parts = [squeeze(op, m, part, [axis]) for part in parts]
    return op.SequenceConstruct(*parts)


def _lowers(m: Match, reader: ir.Node) -> bool:
    return reader.op_type in _LOWERED and not reader.domain and reader.graph is m.graph
