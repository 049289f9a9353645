"""The candidates for the nodes of native groups: onnxruntime's kernels and the group's own, raced."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from typing import Any

import graphopt
from graphopt import ir
from graphopt.config import Settings
from graphopt.context import context_for
from graphopt.fusion.backend import backend_or_host
from graphopt.fusion.group_functions import Group, groups_of
from graphopt.fusion.kernel_library import Libraries, Toolchain
from graphopt.model_arguments import copy
from graphopt.ops import graphopt_operators
from graphopt.optimization_attempt import prepare
from graphopt.ort.target import Target
from graphopt.timing.alternating_runs import Setup
from graphopt.timing.bench import format_shapes
from graphopt.tuning.call_subjects import CallSubject, CallSubjects, call_subjects
from graphopt.tuning.race_kernels import Progress, RaceResult, race_kernels
from graphopt.tuning.stored_races import StoredRaces
from graphopt.util.cpu_features import processor
from graphopt.util.disk_store import Store
from graphopt.util.lazy_dataclass import dataclass
from graphopt.util.text_tables import counted


@dataclass(frozen=True)
class RacedCalls:
    """Calls of one group with the same sizes, and the result of their race."""

    subject: CallSubject
    result: RaceResult

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON."""
        subject, result = self.subject, self.result
        measurement = None if result.measurement is None else result.measurement.to_dict()
        return {
            "group": subject.group,
            "calls": list(subject.calls),
            "inputs": list(subject.types),
            "candidates": [
                {"name": name, "milliseconds": seconds * 1e3} for name, seconds in result.seconds.items()
            ],
            "reading": measurement,
            "winner": result.winner,
            "reason": result.reason,
            "stored": result.is_stored,
        }


@dataclass(frozen=True)
class KernelCandidates:
    """The raced candidates of a model.

    Attributes:
        raced: the races, in the order of the graph, for each set of shapes.
        excluded: the reasons why other calls were not raced, by label of the node.
        ungrouped: the reasons why nodes are in no group, by label of the node.
        where: device, runtime, processor and threads.
        inputs: the shapes of the inputs, as text.
        failure: the reason why no library was built, such as a missing compiler.
    """

    raced: tuple[RacedCalls, ...]
    excluded: dict[str, str] = field(default_factory=dict)
    ungrouped: dict[str, str] = field(default_factory=dict)
    where: str = ""
    inputs: tuple[str, ...] = ()
    failure: str | None = None

    def losers(self) -> Iterator[str]:
        """The calls whose kernel is not faster, or is slower for some set of shapes, by first output."""
        by_call: dict[str, list[RaceResult]] = {}
        for item in self.raced:
            for call in item.subject.outputs:
                by_call.setdefault(call, []).append(item.result)
        for call, results in by_call.items():
            measured = [result.measurement for result in results if result.measurement is not None]
            if measured and not (
                any(each.faster for each in measured) and not any(each.slower for each in measured)
            ):
                yield call

    def to_dict(self) -> dict[str, Any]:
        """The candidates as JSON."""
        return {
            "where": self.where,
            "inputs": list(self.inputs),
            "raced": [item.to_dict() for item in self.raced],
            "not_raced": self.excluded,
            "ungrouped": self.ungrouped,
        }


@dataclass(frozen=True)
class KernelRacer:
    """Races the kernels of models.

    Attributes:
        toolchain: builds the kernels; the device and the settings are those of the races.
        threads: threads inside one operator; by default one per core.
        fresh: race again, even if the store has results.
    """

    toolchain: Toolchain
    threads: int | None = None
    fresh: bool = False

    @cached_property
    def where(self) -> str:
        """Device, runtime, processor and threads, as text."""
        device, threads = self.toolchain.device, self.threads
        words = "default threads" if threads is None else counted(threads, "thread")
        return f"{device}, onnxruntime {Target(device).version}, {processor()}, {words}"

    def race(
        self,
        model: ir.Model,
        feeds: Sequence[Mapping[str, Any]],
        seconds: float,
        progress: Progress = lambda text, spent: None,
    ) -> KernelCandidates:
        """Race the kernels of the groups in ``model``.

        Args:
            model: a model with groups; not modified.
            feeds: the inputs of a run for each set of shapes.
            seconds: time for the races; the current pass ends when it is spent.

        Raises:
            RuntimeFailure: the model does not run on ``feeds``.
        """
        groups = {group.name: group for group in groups_of(model)}
        store = StoredRaces(
            Store(self.toolchain.settings.cache_dir), self._circumstances(), self._sources(groups), self.fresh
        )
        device = self.toolchain.device
        calls = [call_subjects(model, each, device) for each in feeds]
        every = [subject for found in calls for subject in found.subjects]
        fresh = {subject.group for subject in every if store.recall(subject) is None}
        libraries = self._libraries(model, fresh, {subject.group for subject in every})
        raced: list[RacedCalls] = []
        excluded: dict[str, str] = {}
        for found in calls:
            fit = [one for one in found.subjects if one.group not in fresh or one.group in libraries.kernels]
            setup = Setup({}, device=device, threads=self.threads)
            results = race_kernels(
                fit, setup, libraries.choice, store, seconds=seconds / len(feeds), progress=progress
            )
            raced.extend(map(RacedCalls, fit, results))
            excluded |= found.excluded | _without_kernel(found, groups, fit, libraries)
        shapes = tuple(map(format_shapes, feeds))
        return KernelCandidates(
            tuple(raced), excluded, where=self.where, inputs=shapes, failure=libraries.failure
        )

    def _libraries(self, model: ir.Model, fresh: set[str], every: set[str]) -> Libraries:
        """The library of the groups in ``fresh``, which may also contain the others."""
        if not fresh:
            return Libraries()
        return self.toolchain.libraries(model, None if fresh == every else fresh)

    def _circumstances(self) -> str:
        version = graphopt.__version__
        return f"{self.where}, {os.cpu_count()} cores, {self.toolchain.compiler}, graphopt {version}"

    def _sources(self, groups: Mapping[str, Group]) -> dict[str, str]:
        """The source of the kernel of each group."""
        backend = backend_or_host(self.toolchain.device)
        kernels = {name: group.kernel for name, group in groups.items() if group.kernel is not None}
        return {name: backend.render([kernel]) for name, kernel in kernels.items()}


def _without_kernel(
    found: CallSubjects, groups: Mapping[str, Group], fit: Sequence[CallSubject], libraries: Libraries
) -> dict[str, str]:
    """The reasons why calls have no kernel in the library, by label of the node and name of the group."""
    failure = libraries.failure or "the compiler failed"
    missing = [subject for subject in found.subjects if subject not in fit]
    return {
        f"{call} ({subject.group})": groups[subject.group].reason or f"no kernel was built: {failure}"
        for subject in missing
        for call in subject.calls
    }


def propose_candidates(model: ir.Model, settings: Settings) -> tuple[ir.Model, dict[str, str]]:
    """``model`` with all native groups that may win a race, and the reasons for ungrouped nodes, by label.

    A model that has groups keeps them. Otherwise, the pipeline ``native`` runs, with predicted costs ignored.
    """
    if graphopt_operators.has_groups(model):
        return model, {}
    model = copy(model)
    attempt = prepare(settings, pipeline="native").on(model)
    with context_for(model, attempt.options) as cx:
        attempt.pipeline.eager().run(model, cx)
        return model, dict(cx.ungrouped)
