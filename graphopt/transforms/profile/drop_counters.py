"""drop-counters: remove the counters of profiled runs."""

from __future__ import annotations

from typing import ClassVar

from graphopt import ir
from graphopt.context import Context
from graphopt.ops import graphopt_operators
from graphopt.passes.base import Pass
from graphopt.transforms.profile._profiling_nodes import remove_profiling_nodes
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class DropCounters(Pass):
    """Remove the counters of profiled runs; profiling nodes and annotations are kept.

    Modelled on ``ProfilingRecord::removeProfileCounter`` of PyTorch's JIT.
    """

    name: ClassVar[str] = "drop-counters"
    does: ClassVar[str] = "removed"

    def run(self, model: ir.Model, cx: Context) -> None:
        """Remove all counters."""
        remove_profiling_nodes(model, cx, self.name, graphopt_operators.COUNTER)
