"""A pass that records the annotations and the types that it observes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from graphopt import ir
from graphopt.context import Context
from graphopt.passes.base import Pass
from graphopt.profile.annotations import annotation_of


@dataclass(frozen=True)
class Look(Pass):
    """Append a line to a file: the annotated values, and the shape of the first input.

    Attributes:
        file: the path of the file.
    """

    file: str = ""

    name: ClassVar[str] = "look"

    def run(self, model: ir.Model, cx: Context) -> None:
        """Append the line."""
        values = [value for graph in ir.graphs_of(model) for value in ir.values_of(graph)]
        noted = ",".join(sorted(value.name or "" for value in values if annotation_of(value)))
        with Path(self.file).open("a") as file:
            file.write(f"{noted or 'nothing'} {model.graph.inputs[0].shape}\n")
