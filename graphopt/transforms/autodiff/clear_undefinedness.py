"""clear-undefinedness: clear annotations of absent gradients."""

from __future__ import annotations

from typing import ClassVar

from graphopt import ir
from graphopt.context import Context
from graphopt.ops import graphopt_operators
from graphopt.passes.base import Pass
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class ClearUndefinedness(Pass):
    """Clear the annotation ``graphopt.undefined`` of values of the model, its bodies and its functions.

    The annotation marks gradients that were zero in profiled runs, and may be wrong for other runs.
    """

    name: ClassVar[str] = "clear-undefinedness"

    def run(self, model: ir.Model, cx: Context) -> None:
        """Clear the annotations of all values."""
        for graph in ir.graphs_of(model):
            for value in ir.values_of(graph):
                cx.edit.remove_metadata(value, lambda key: key == graphopt_operators.UNDEFINED)
