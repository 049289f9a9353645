"""remove-sequence-mutation: SequenceInsert and SequenceErase folded into SequenceConstruct."""

from __future__ import annotations

from typing import ClassVar

from graphopt import ir
from graphopt.context import Context
from graphopt.passes.base import Pass
from graphopt.rewrite.worklist import apply_rules
from graphopt.rules import admitted_rules
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class RemoveSequenceMutation(Pass):
    """Fold SequenceInsert and SequenceErase at known positions into SequenceConstruct."""

    name: ClassVar[str] = "remove-sequence-mutation"

    def run(self, model: ir.Model, cx: Context) -> None:
        """Apply the rules of the family ``sequence_mutation``."""
        apply_rules(admitted_rules(cx.options, ("sequence_mutation",)), model, cx)
