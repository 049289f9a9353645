"""Whether the sessions of an executor, a bundle or a run capture CUDA graphs, and the reasons if not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING

from graphopt import ir
from graphopt.diagnostics.hint import Hint
from graphopt.diagnostics.record import Record
from graphopt.errors import GraphoptError, RuntimeFailure
from graphopt.ort.devices import Device
from graphopt.specialization.cuda_graphs.captured_graphs import CapturedGraphs, GraphOptions
from graphopt.specialization.cuda_graphs.obstacles import copy_in, obstacles
from graphopt.util.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

#: The options of the CUDA provider for sessions with CUDA graphs.
GRAPHS_ON = {"enable_cuda_graph": "1"}
#: The counter of sessions that run without CUDA graphs, although these were requested.
SKIPS = "cuda-graph skips"


@dataclass(eq=False)
class GraphSwitch:
    """Creates sessions with CUDA graphs where possible.

    Attributes:
        options: the requested options; ``None`` if CUDA graphs were not requested.
        record: receives hints and counters.
        after: the switch of the forward model, if this is the switch of a backward model: a reason there is
            also a reason here.
        reason: the reason why a session runs without CUDA graphs; ``None`` if all run with them.
    """

    options: GraphOptions | None = None
    record: Record = field(default_factory=Record)
    after: GraphSwitch | None = None
    reason: str | None = None

    def derived(self, after: GraphSwitch | None = None) -> GraphSwitch:
        """A switch with the same options and record, for another model."""
        return GraphSwitch(self.options, self.record, after)

    def session(
        self,
        create: Callable[[Mapping[str, str]], InferenceSession],
        model: Callable[[], ir.Model],
        device: Device,
    ) -> tuple[InferenceSession, CapturedGraphs | None]:
        """A session, and its CUDA graphs; ``None`` if it runs without them.

        Args:
            create: creates the session, given options of the CUDA provider.
            model: returns the model of the session.
            device: the device.

        Raises:
            RuntimeFailure: onnxruntime refuses the model also without CUDA graphs.
        """
        if self.options is None:
            return create({}), None
        reason = None
        if self.after is not None and self.after.reason is not None:
            reason = f"the forward model runs without: {self.after.reason}"
        reason = reason or next(obstacles(model(), device), None)
        if reason is None:
            try:
                made = create(GRAPHS_ON)
            except RuntimeFailure as failure:
                reason = refusal(failure, model(), device)
            else:
                return made, CapturedGraphs(made, device, self.options, self.record)
        self.reason = self.reason or reason
        skip(self.record, reason, device)
        return create({}), None


def refusal(failure: GraphoptError, model: ir.Model | None, device: Device) -> str:
    """The reason why onnxruntime rejects a session of ``model`` with CUDA graphs."""
    if "control flow" in failure.message:
        return "onnxruntime finds control flow in the model"
    if "graph capture" in failure.message or "CUDA Graph" in failure.message:
        copy = None if model is None else copy_in(model, device)
        return copy or "onnxruntime copies tensors between the CPU and the GPU"
    return f"onnxruntime rejects them: {failure.message}"


def skip(record: Record, reason: str, device: Device) -> None:
    """Count a session without CUDA graphs; on a GPU, also give a hint."""
    record.count(SKIPS)
    if device.capabilities.captures_graphs:
        remedy = (
            "the model runs without CUDA graphs; docs/diagnostics.md lists the conditions, and graphopt"
            " explain --device cuda the copies between the CPU and the GPU"
        )
        record.hint(Hint("cuda-graph-off", f"CUDA graphs are off: {reason}", remedy))
