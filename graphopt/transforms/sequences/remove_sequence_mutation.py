"""remove-sequence-mutation: sequences are made at once instead of step by step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from graphopt import ir
from graphopt.context import Context
from graphopt.passes.base import Pass
from graphopt.rewrite.worklist import apply_rules
from graphopt.rules import admitted_rules


@dataclass(frozen=True)
class RemoveSequenceMutation(Pass):
    """Make sequences at once that SequenceInsert and SequenceErase change at known positions."""

    name: ClassVar[str] = "remove-sequence-mutation"

    def run(self, model: ir.Model, cx: Context) -> None:
        """Apply the rules of the family ``sequence_mutation``."""
        apply_rules(admitted_rules(cx.options, ("sequence_mutation",)), model, cx)
