"""lower-sequences: sequences and optionals lowered to tensors."""

from __future__ import annotations

from typing import ClassVar

from graphopt import ir
from graphopt.context import Context
from graphopt.passes.base import Pass
from graphopt.rewrite.worklist import apply_rules
from graphopt.rules import admitted_rules
from graphopt.transforms.sequences.gather_loop_lists import GatherLoopLists
from graphopt.transforms.sequences.index_split_lists import IndexSplitLists
from graphopt.util.lazy_dataclass import dataclass

_FAMILIES = ("optional", "sequence", "sequence_mutation")


@dataclass(frozen=True)
class LowerSequences(Pass):
    """Lower operators on sequences and optionals to operators on the tensors in them.

    Sequences must be constructed, changed and read at known positions in one graph; inputs and outputs of the
    model are unchanged. Sequences that a Loop appends to become stacked outputs (see gather-loop-lists). A
    stack becomes an Unsqueeze per tensor and one Concat. A split whose parts are all read becomes one Split.
    The result may have more nodes, but no node copies tensors into a sequence.
    """

    name: ClassVar[str] = "lower-sequences"

    def run(self, model: ir.Model, cx: Context) -> None:
        """Apply the rules of ``_FAMILIES``, and two rules that increase the number of nodes."""
        IndexSplitLists().run(model, cx)
        GatherLoopLists().run(model, cx)
        rules = admitted_rules(cx.options, _FAMILIES) + admitted_rules(cx.options, pass_=self.name)
        apply_rules(rules, model, cx)
