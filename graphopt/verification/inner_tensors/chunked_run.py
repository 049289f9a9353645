"""Run a model chunk by chunk, and return the inner values of each chunk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from graphopt import ir
from graphopt.errors import RuntimeFailure
from graphopt.ort.devices import Device
from graphopt.ort.model_runs import RemoteRuns, Runner, SessionMemory
from graphopt.ort.optimized_graph import optimized_graph
from graphopt.ort.session import Optimizations
from graphopt.ort.session_options import SessionChoice
from graphopt.util.lazy_dataclass import dataclass
from graphopt.verification.inner_tensors.node_chunks import Chunk
from graphopt.verification.model_parts import types_of
from graphopt.verification.runners import Runners

#: Options of sessions without an arena, which release the memory of dead values immediately.
_MEMORY = SessionMemory(is_single=True)


@dataclass(frozen=True)
class SessionKind:
    """The properties of the sessions of a model.

    Attributes:
        device: the device.
        level: onnxruntime's optimizations.
        choice: further session options, such as libraries of kernels.
    """

    device: Device
    level: Optimizations = "off"
    choice: SessionChoice | None = None


class ChunkedRun:
    """Runs a model chunk by chunk, in sessions of one kind.

    With optimizations, a chunk returns only the inner values that exist after its optimizations, because
    an output in the middle of a fusion prevents the fusion.

    Args:
        name: the name of the model in messages.
        chunks: the chunks, in topological order.
        runners: creates the sessions.
        kind: the kind of sessions.

    Attributes:
        peak_bytes: maximum memory of the ended processes.
    """

    def __init__(self, name: str, chunks: Sequence[Chunk], runners: Runners, kind: SessionKind) -> None:
        self._name, self._chunks, self._runners, self._kind = name, chunks, runners, kind
        self.peak_bytes = 0
        self._only: tuple[Chunk, Runner] | None = None

    def stream(self, feeds: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the wanted values by name, chunk by chunk; chunks without wanted values are omitted.

        Raises:
            RuntimeFailure, ResourceLimit: a chunk does not load or run.
        """
        known: dict[str, Any] = {}
        for chunk in self._chunks:
            available = {**feeds, **known}
            inputs = [value.name or "" for value in chunk.region.graph_inputs()]
            own = {name: available[name] for name in inputs if name in available}
            try:
                chunk, runner = self._only or self._prepared(chunk, own)
                results = runner.run(self._kind.level, own)
            except RuntimeFailure as failure:
                raise RuntimeFailure(f"{self._name}: {failure}") from failure
            if len(self._chunks) == 1:
                self._only = chunk, runner
            else:
                self._end(runner)
            del runner
            names = (value.name or "" for value in chunk.region.outputs)
            values = dict(zip(names, results, strict=True))
            for name in chunk.ended:
                known.pop(name, None)
            known |= {name: values[name] for name in chunk.needed}
            if found := {name: values[name] for name in chunk.wanted if name in values}:
                yield found

    def rest(self) -> None:
        """End the process of a model with a single chunk; the next run starts another."""
        if self._only is not None:
            self._end(self._only[1])

    def _end(self, runner: Runner) -> None:
        if isinstance(runner, RemoteRuns):
            self.peak_bytes = max(self.peak_bytes, runner.peak_bytes)
            runner.rest()

    def _prepared(self, chunk: Chunk, inputs: Mapping[str, Any]) -> tuple[Chunk, Runner]:
        """The chunk, with the values that its sessions return, and its runner."""
        kind, types = self._kind, types_of(inputs)
        if kind.level != "off":
            chunk = _after_optimizations(chunk, types, kind)
        source = chunk.region.to_source(types)
        return chunk, self._runners.runner(source, choice=kind.choice, memory=_MEMORY)


def _after_optimizations(chunk: Chunk, types: Mapping[str, ir.TypeProtocol], kind: SessionKind) -> Chunk:
    """``chunk`` without the wanted values that do not exist after onnxruntime's optimizations."""
    region, needed = chunk.region, dict.fromkeys(chunk.needed)
    if not needed:
        return chunk
    plain = replace(region, outputs=tuple(value for value in region.outputs if value.name in needed))
    with optimized_graph(
        plain.to_source(types), optimizations=kind.level, device=kind.device, choice=kind.choice
    ) as model:
        exists = {value.name: None for node in model.graph for value in node.outputs}
    kept = tuple(value for value in region.outputs if value.name in needed or value.name in exists)
    return replace(chunk, region=replace(region, outputs=kept))
