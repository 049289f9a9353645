"""Race the kernel of each native group against onnxruntime's kernels of its nodes, one group at a time.

Each pass is a fresh process that visits all subjects; at each subject, the nodes, the nodes once more and the
kernel run alternately. Each pass contributes one ratio of the kernel to the nodes, and one of the nodes to
themselves, whose band decides whether there is a difference (:mod:`graphopt.timing.ratios`). A kernel that is
clearly slower in the first passes takes no part in the others.

Results are stored by everything that they depend on: the group, the sizes and types of its inputs, the source
of the kernel and its compiler, the CPU level, the number of threads, the processor and the version of
onnxruntime. A group with a stored result is not raced, also in another model.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from typing import Protocol

from graphopt.cost.calibrate import TWIN
from graphopt.errors import GraphoptError
from graphopt.ort.session_options import SessionChoice
from graphopt.process.child import Child
from graphopt.timing import ratios
from graphopt.timing.alternating_runs import RaceLimits, Setup, race, round_ratios
from graphopt.tuning.call_subjects import CallSubject
from graphopt.tuning.measurements import Measurement, conclusion
from graphopt.util.lazy_dataclass import dataclass

#: Names of the two candidates.
NODES, KERNEL = "onnxruntime", "kernel"
#: Extent of the race of one subject in one pass.
_LIMITS = RaceLimits(rounds=10, processes=1, warmup=2, seconds=0.2)
#: Wall-clock seconds after which the race of a subject counts as failed.
_PATIENCE = 120.0
#: Number of passes after which slow kernels are eliminated, and the least ratio of a slow kernel.
_ELIMINATION, _SLOW = 2, 1.05

#: Receives a description of the current measurement, and the spent share of the time.
Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class RaceResult:
    """The result of one race.

    Attributes:
        measurement: the kernel against the nodes; ``None`` if the time did not suffice.
        seconds: the median time of each candidate.
        is_stored: whether the result is from the store.
    """

    measurement: Measurement | None
    seconds: dict[str, float] = field(default_factory=dict)
    is_stored: bool = False

    @property
    def winner(self) -> str | None:
        """The candidate that is faster; onnxruntime without a difference, ``None`` without a measurement."""
        if self.measurement is None:
            return None
        return KERNEL if self.measurement.pays else NODES

    @property
    def reason(self) -> str:
        """The reason for the winner."""
        return conclusion(self.measurement)


class ResultStore(Protocol):
    """Keeps results of races."""

    def recall(self, subject: CallSubject) -> RaceResult | None:
        """The stored result."""

    def keep(self, subject: CallSubject, result: RaceResult) -> None:
        """Store a result."""


@dataclass
class _Entry:
    """The ratios of one subject, one for each pass."""

    subject: CallSubject
    kernel: list[float] = field(default_factory=list)
    twin: list[float] = field(default_factory=list)
    seconds: dict[str, list[float]] = field(default_factory=dict)
    failure: str | None = None

    def is_open(self) -> bool:
        """Whether another pass may change the conclusion."""
        if self.failure is not None or len(self.kernel) >= ratios.LEAST_PROCESSES:
            return False
        return len(self.kernel) < _ELIMINATION or not self._is_eliminated()

    def _is_eliminated(self) -> bool:
        least = max(_SLOW, ratios.band_of(self.twin).high)
        return all(ratio > least for ratio in self.kernel)

    def result(self) -> RaceResult | None:
        """The result; ``None`` before the last pass of the subject."""
        if self.failure is not None:
            return RaceResult(Measurement.failed(self.failure))
        if self.is_open():
            return None
        band = ratios.band_of(self.twin)
        seconds = {name: ratios.median(series) for name, series in self.seconds.items()}
        if len(self.kernel) < ratios.LEAST_PROCESSES:
            return RaceResult(Measurement(ratios.median(self.kernel), band, slower=True), seconds)
        return RaceResult(Measurement.of([(ratios.compare(self.kernel, band), band)]), seconds)


def race_kernels(
    subjects: Sequence[CallSubject],
    setup: Setup,
    libraries: SessionChoice,
    store: ResultStore,
    *,
    seconds: float,
    progress: Progress = lambda text, spent: None,
    clock: Callable[[], float] = time.monotonic,
) -> list[RaceResult]:
    """The results of the races of ``subjects``, from the store or measured.

    Args:
        setup: device, threads and further settings of the sessions; its feeds are not used.
        libraries: session options with the library of the kernels.
        seconds: time for the races; the current pass over the subjects ends when it is spent.
    """
    stored = {number: found for number, subject in enumerate(subjects) if (found := store.recall(subject))}
    entries = {number: _Entry(subject) for number, subject in enumerate(subjects) if number not in stored}
    begin = clock()
    for index in range(ratios.LEAST_PROCESSES):
        active = [entry for entry in entries.values() if entry.is_open()]
        if not active or clock() - begin > seconds:
            break
        with Child(preload=["onnxruntime", "graphopt.timing.alternating_runs"], fresh=True) as child:
            for number, entry in enumerate(active, 1):
                spent = (clock() - begin) / max(seconds, 1e-3)
                if spent > 1:
                    break
                text = f"racing kernels, pass {index + 1}, {number} of {len(active)}: {entry.subject.group}"
                progress(text, spent)
                _race(child, entry, setup, libraries, index)
    for number, entry in entries.items():
        if (result := entry.result()) is not None:
            stored[number] = result
            store.keep(subjects[number], result)
    return [stored.get(number, RaceResult(None)) for number in range(len(subjects))]


def _race(child: Child, entry: _Entry, setup: Setup, libraries: SessionChoice, index: int) -> None:
    """Add the ratios of one pass to ``entry``, or the error of a candidate."""
    subject = entry.subject
    models = dict.fromkeys((NODES, KERNEL, TWIN), subject.model)
    single = replace(setup, feeds=subject.feeds, shapes=None, choices={KERNEL: libraries}, share={})
    try:
        doing = f"racing {subject.group}"
        times = child.call(race, models, single, _LIMITS, index, timeout=_PATIENCE, doing=doing)
    except GraphoptError as error:
        entry.failure = error.message
        return
    entry.kernel.append(ratios.median(round_ratios(times, KERNEL, NODES)))
    entry.twin.append(ratios.median(round_ratios(times, TWIN, NODES)))
    for name in (NODES, KERNEL):
        entry.seconds.setdefault(name, []).extend(min(turn) for turn in times[name])
