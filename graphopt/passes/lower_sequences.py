"""lower-sequences: work on the tensors in a sequence instead of the sequence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from graphopt import ir
from graphopt.context import Context
from graphopt.passes.base import Pass
from graphopt.passes.gather_loop_lists import GatherLoopLists
from graphopt.passes.index_split_lists import IndexSplitLists
from graphopt.rewrite import Exact, Match, Outcome, rule
from graphopt.rewrite.builder import Builder
from graphopt.rewrite.worklist import apply_rules
from graphopt.rules import _forms as forms
from graphopt.rules import admitted_rules
from graphopt.rules.sequence import split_of

_FAMILIES = ("optional", "sequence", "sequence_mutation")
#: What takes a sequence of tensors at hand apart, or makes another one of it.
_LOWERED = ("SequenceAt", "SequenceLength", "ConcatFromSequence", "SequenceInsert", "SequenceErase")


@rule(
    lambda op, xs: op.ConcatFromSequence(op.SequenceConstruct(xs.rest()), new_axis=1),
    numerics=Exact,
)
def stack_constructed_sequence(op: Builder, m: Match, xs: tuple[ir.Value, ...]) -> Outcome:
    """A sequence of tensors at hand, stacked, is the Concat of these tensors with a new axis each."""
    rank = m.rank(xs[0])
    axis = None if rank is None else forms.axis_of(m, m.root, rank + 1)
    if axis is None:
        return m.no("the rank or the axis is unknown", xs[0])
    return op.Concat(*(forms.unsqueeze(op, m, x, [axis]) for x in xs), axis=axis)


@rule(lambda op, x, s: op.SplitToSequence(x, s.optional()), numerics=Exact)
def construct_split_sequence(op: Builder, m: Match, x: ir.Value, s: ir.Value | None) -> Outcome:
    """A tensor split into a sequence of parts of known sizes is a Split, and a sequence made of its outputs.

    Only where all that reads the sequence can be lowered then, and something needs all parts.
    """
    readers = list(ir.readers(m.root.outputs[0]))
    if m.root.outputs[0].is_graph_output() or any(not _lowers(m, reader) for reader in readers):
        return m.no("the sequence itself is needed")
    if all(reader.op_type in _LOWERED[:2] for reader in readers):
        return m.no("single parts are taken by a Slice each")
    axis, sizes = split_of(m, m.root)
    if axis is None or not sizes:
        return m.no("the size of the axis or of the parts is unknown", x)
    if m.version >= 13:
        parts = op.Split(x, np.array(sizes, np.int64), outputs=len(sizes), axis=axis)
    else:
        parts = op.Split(x, outputs=len(sizes), axis=axis, split=list(sizes))
    parts = (parts,) if len(sizes) == 1 else parts
    if s is None and m.attribute(m.root, "keepdims") == 0:
        parts = [forms.squeeze(op, m, part, [axis]) for part in parts]
    return op.SequenceConstruct(*parts)


def _lowers(m: Match, reader: ir.Node) -> bool:
    return reader.op_type in _LOWERED and not reader.domain and reader.graph is m.graph


@dataclass(frozen=True)
class LowerSequences(Pass):
    """Replace operators on sequences and optionals by operators on the tensors in them.

    Sequences must be made, changed and read at known positions in one graph; those that a model
    takes or returns stay. Lists that a Loop appends to are gathered (see gather-loop-lists). A stack
    becomes an Unsqueeze for each tensor and one Concat, a split whose parts are all needed one
    Split: more nodes, but none that copies tensors into a sequence.
    """

    name: ClassVar[str] = "lower-sequences"

    def run(self, model: ir.Model, cx: Context) -> None:
        """Apply the rules of the families of ``_FAMILIES``, and two that make more nodes."""
        IndexSplitLists().run(model, cx)
        GatherLoopLists().run(model, cx)
        rules = admitted_rules(cx.options, _FAMILIES)
        apply_rules([*rules, stack_constructed_sequence, construct_split_sequence], model, cx)
