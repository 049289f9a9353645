"""The plan whose runs are profiled, with profiling nodes for watched values."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import field
from typing import Any

from graphopt import ir
from graphopt.executor.plan import Plan
from graphopt.specialization.instrumented_model import InstrumentedModel, Observed, lower_profiling_nodes
from graphopt.util.lazy_dataclass import dataclass


@dataclass(eq=False)
class ProfiledPlan(Plan):
    """A plan that also observes watched values, and from whose model specializations are made.

    Its model has profiling nodes. The model of its session returns descriptions of the watched values as
    further outputs instead.

    Attributes:
        left_out: the number of candidates that are not watched.
    """

    left_out: int = 0
    _lowered: InstrumentedModel = field(init=False)

    def __post_init__(self) -> None:
        (self._lowered,) = lower_profiling_nodes(self.model, chunk=sys.maxsize)

    def _session_model(self) -> Callable[[], ir.Model]:
        model = self._lowered.model
        return lambda: model

    @property
    def watched(self) -> int:
        """The number of watched intermediate values."""
        return len({probe.value for probe in self._lowered.probes.values()})

    def take_observed(self, outputs: dict[str, Any]) -> Observed:
        """Remove the observations from ``outputs``, which are arrays or values of onnxruntime."""
        found = {name: outputs.pop(name) for name in self._lowered.probes}
        arrays = {name: value.numpy() if hasattr(value, "numpy") else value for name, value in found.items()}
        return self._lowered.observed(arrays)
