"""clear-profile: remove profile annotations."""

from __future__ import annotations

from typing import ClassVar

from graphopt import ir
from graphopt.context import Context
from graphopt.ops import graphopt_operators
from graphopt.passes.base import Pass
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class ClearProfile(Pass):
    """Remove the annotations of profiled runs from all values of the model, its bodies and its functions.

    Annotations are metadata whose keys begin with ``graphopt.profile.``; nothing else changes.
    """

    name: ClassVar[str] = "clear-profile"

    def run(self, model: ir.Model, cx: Context) -> None:
        """Remove the annotations of all values."""
        for graph in ir.graphs_of(model):
            for value in ir.values_of(graph):
                cx.edit.remove_metadata(value, lambda key: key.startswith(graphopt_operators.PROFILE_NOTES))
