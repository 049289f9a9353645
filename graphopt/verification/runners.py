"""Runs of the original and of the candidates, in this process or in child processes."""

from __future__ import annotations

from graphopt import ir
from graphopt.ort.crash_risks import crash_risk, divergence_risk
from graphopt.ort.devices import Device
from graphopt.ort.model_runs import RemoteRuns, Runner, Runs, SessionMemory
from graphopt.ort.session import Source
from graphopt.ort.session_options import SessionChoice
from graphopt.process.child import Child
from graphopt.verification.session_memory import MemoryPlan

#: CPU time limit of one run, in seconds.
_PATIENCE = 20.0
#: Bytes of weights per additional second of a run, and nodes per additional second of session creation.
_BYTES_PER_SECOND, _NODES_PER_SECOND = 100_000_000, 1000
#: Seconds of CPU time for one run of a model that may diverge: initially, and after no run has ended in that
#: time.
DIVERGENT_QUICK, _DIVERGENT_PATIENCE = 1.0, 5.0


class Runners:
    """Creates runners, which share limits on time and memory, and ends their processes.

    Args:
        model: the original.
        device: the device that runs the models.
        threads: threads inside one operator; by default onnxruntime's choice.
        memory: bytes of memory of a child in addition to the weights; ``None`` for no limit.
        isolate: use child processes on any device.

    Attributes:
        isolated: whether runs use child processes.
        is_divergent: whether a run of the original may not end.
        memory_plan: the limits on memory.
        peak_bytes: maximum memory of the ended processes.
    """

    def __init__(
        self, model: ir.Model, device: Device, *, threads: int | None, memory: int | None, isolate: bool
    ) -> None:
        self._device, self._threads = device, threads
        self.is_divergent = divergence_risk(model) is not None
        work = ir.initializer_bytes(model) / _BYTES_PER_SECOND
        self._patience = _DIVERGENT_PATIENCE if self.is_divergent else _PATIENCE + work
        self._loading = self._patience + len(model.graph) / _NODES_PER_SECOND
        forkable = device.capabilities.forkable
        self.isolated = forkable or isolate or self.is_divergent or crash_risk(model) is not None
        self.memory_plan = MemoryPlan.of(model, memory) if device.capabilities.is_host else MemoryPlan()
        self.peak_bytes = 0
        self._originals: list[RemoteRuns] = []
        self._candidates: list[RemoteRuns] = []

    def close(self) -> None:
        """End all processes; they restart on demand."""
        self._stop([*self._originals, *self._candidates])

    def close_candidates(self) -> None:
        """End the processes of candidates."""
        self._stop(self._candidates)
        self._candidates.clear()

    def _stop(self, running: list[RemoteRuns]) -> None:
        for runs in running:
            self.peak_bytes = max(self.peak_bytes, runs.peak_bytes)
            runs.rest()

    def candidate(
        self, source: Source, model: ir.Model, choice: SessionChoice | None, *, empty: bool = False
    ) -> Runner:
        """Runs of a candidate, isolated for empty inputs and if it may crash."""
        isolated = empty or crash_risk(model) is not None
        return self.runner(source, isolated=isolated, choice=choice, is_candidate=True)

    def runner(
        self,
        source: Source,
        *,
        isolated: bool = False,
        choice: SessionChoice | None = None,
        is_candidate: bool = False,
        memory: SessionMemory | None = None,
    ) -> Runner:
        """Runs of ``source``, in a child process if all runs, or these runs, are isolated.

        ``memory`` replaces the use of memory that is planned for whole models.
        """
        if not (isolated or self.isolated):
            return Runs(source, self._device, self._threads, self._patience, choice)
        runs = RemoteRuns(
            self._start,
            source,
            self._device,
            self._threads,
            self._patience,
            choice,
            memory=memory or self.memory_plan.sessions,
            loading=self._loading,
        )
        (self._candidates if is_candidate else self._originals).append(runs)
        return runs

    def _start(self) -> Child:
        if self.memory_plan.sessions.is_single:  # no memory for the sessions of two models
            self.close()
        fresh = not self._device.capabilities.forkable
        return Child(
            memory=self.memory_plan.limit,
            is_scarce=self.memory_plan.is_scarce,
            preload=("graphopt.ort.model_runs",),
            fresh=fresh,
        )
