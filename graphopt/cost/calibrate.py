"""Measure the costs of fused operators on this machine.

Each pass is a fresh process that visits all grid points; a grid point is a subject at particular sizes. At
each point, the replaced nodes, an identical copy of them, and all fused operators run alternately. Each of
them contributes one ratio. The ratios of the nodes to their copy show the noise. The number of passes is at
least 1, and sufficient to distinguish gains from noise unless a budget limits it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field

from graphopt.cost.calibration_models import SUBJECTS, UNFUSED, Subject
from graphopt.cost.cost_model import ENOUGH_PASSES, LEAST_GAIN, Costs, Grid, choices
from graphopt.cost.select_table import hardware, runtime_version
from graphopt.errors import GraphoptError, RuntimeFailure
from graphopt.ort.devices import Device
from graphopt.process.child import Child
from graphopt.timing import ratios
from graphopt.timing.alternating_runs import RaceLimits, Setup, race, round_ratios
from graphopt.util.lazy_dataclass import dataclass
from graphopt.util.text_tables import counted, human_seconds

#: Name of the second session of the replaced nodes.
TWIN = "twin"
#: Extent of the measurement at one point in one pass.
_LIMITS = RaceLimits(rounds=10, processes=1, warmup=2, seconds=1.0)
#: Wall-clock seconds after which a point is skipped.
_PATIENCE = 120.0
#: Number of decimals of figures.
_DIGITS = 4

#: Receives a description of the current measurement, and the share of all measurements done.
Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class GridPoint:
    """A subject at particular sizes."""

    subject: Subject
    sizes: dict[str, int] = field(hash=False)

    def __str__(self) -> str:
        return ", ".join([str(self.subject), *(f"{name} {size}" for name, size in self.sizes.items())])


#: Measures points, one after the other, in one process; yields the ratio of each operator for each point.
Stopwatch = Callable[[Sequence[GridPoint], int], Iterator[dict[str, float]]]


@dataclass(frozen=True)
class HarnessStopwatch:
    """Measures by the timing harness.

    Attributes:
        threads: threads inside one operator.
    """

    device: Device
    threads: int

    def __call__(self, points: Sequence[GridPoint], index: int) -> Iterator[dict[str, float]]:
        """The ratios of all operators that run at each of ``points``; none if the replaced nodes do not run.

        Args:
            index: number of the pass, which determines the order of turns.
        """
        with Child(preload=["onnxruntime", "graphopt.timing.alternating_runs"], fresh=True) as child:
            for point in points:
                yield self._measure(child, point, index)

    def _measure(self, child: Child, point: GridPoint, index: int) -> dict[str, float]:
        competition = point.subject.make(**point.sizes)
        own = {TWIN: competition.choices[UNFUSED]} if UNFUSED in competition.choices else {}
        setup = Setup(
            competition.feeds,
            device=self.device.timed,
            threads=self.threads,
            choices=competition.choices | own,
        )
        models = {**competition.models, TWIN: competition.models[UNFUSED]}
        try:
            return _ratios(child, models, setup, index)
        except GraphoptError:  # some operator does not run on this machine
            fit = [name for name in models if _runs(child, models[name], setup)]
            if UNFUSED not in fit:
                return {}
            return _ratios(child, {name: models[name] for name in fit}, setup, index)


def _ratios(child: Child, models: dict[str, bytes], setup: Setup, index: int) -> dict[str, float]:
    times = child.call(race, models, setup, _LIMITS, index, timeout=_PATIENCE)
    return {name: ratios.median(round_ratios(times, name, UNFUSED)) for name in models if name != UNFUSED}


def _runs(child: Child, model: bytes, setup: Setup) -> bool:
    once = RaceLimits(rounds=1, processes=1, warmup=0)
    try:
        child.call(race, {UNFUSED: model}, setup, once, 0, timeout=_PATIENCE)
    except GraphoptError:
        return False
    return True


def calibrate(
    device: Device,
    *,
    budget: float | None = None,
    threads: int = 1,
    progress: Progress = lambda text, spent: None,
    subjects: Sequence[Subject] = SUBJECTS,
    stopwatch: Stopwatch | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Costs:
    """Measure a cost table for this machine.

    >>> calibrate(Device("cpu"), budget=30).weigh("Attention", length=128)     # doctest: +SKIP

    Args:
        budget: seconds; a pass starts only if it is expected to end in time, except for the first pass. By
            default, :data:`ENOUGH_PASSES` passes run.
        threads: threads inside one operator.

    Raises:
        RuntimeFailure: nothing could be measured.
    """
    points = [GridPoint(subject, sizes) for subject in subjects for sizes in choices(subject.axes)]
    stopwatch = stopwatch or HarnessStopwatch(device, threads)
    found: list[dict[str, list[float]]] = [{} for _ in points]
    begin = clock()
    passes = 0
    while passes == 0 or _continues(passes, clock() - begin, budget):
        for number, measured in enumerate(stopwatch(points, passes)):
            for name, ratio in measured.items():
                found[number].setdefault(name, []).append(ratio)
            progress(*_progress(points, passes, number, clock() - begin, budget))
        passes += 1
    grids = tuple(_grids(points, found))
    if not grids:
        raise RuntimeFailure(f"nothing could be measured on {device}")
    effort = [counted(threads, "thread")] if device.capabilities.is_host else []
    effort.append(counted(passes, "pass", "passes"))
    where = ", ".join([hardware(device), f"onnxruntime {runtime_version()}", *effort])
    return Costs(f"figures calibrated on this machine for {device}", device.kind, where, grids, passes)


def _continues(passes: int, spent: float, budget: float | None) -> bool:
    """Whether to start another pass."""
    if budget is None:
        return passes < ENOUGH_PASSES
    return spent * (passes + 1) / passes <= budget


def _progress(
    points: Sequence[GridPoint], passes: int, number: int, spent: float, budget: float | None
) -> tuple[str, float]:
    """The description of the current measurement, and the share of all measurements done."""
    if budget is not None:
        return f"pass {passes + 1}: {points[number]}", min(1.0, spent / budget)
    done = (passes * len(points) + number + 1) / (ENOUGH_PASSES * len(points))
    left = human_seconds(spent / done - spent)
    return f"pass {passes + 1} of {ENOUGH_PASSES}, about {left} left: {points[number]}", done


def _grids(points: Sequence[GridPoint], found: Sequence[dict[str, list[float]]]) -> Iterator[Grid]:
    """The figures by subject and operator, without operators that did not run at all points."""
    by_subject: dict[Subject, list[dict[str, list[float]]]] = {}
    for point, measured in zip(points, found, strict=True):
        by_subject.setdefault(point.subject, []).append(measured)
    for subject, series in by_subject.items():
        everywhere = [ratio for measured in series for ratio in measured.get(TWIN, ())]
        for name in series[0]:
            if name != TWIN and all(name in measured for measured in series):
                figures = [_figure(measured[name], measured[TWIN], everywhere) for measured in series]
                middles, bands = zip(*figures, strict=True)
                yield Grid(name, subject.case, subject.dtype, subject.axes, middles, bands)


def _figure(
    measured: Sequence[float], twin: Sequence[float], everywhere: Sequence[float]
) -> tuple[float, float]:
    """The ratio at one point, and the ratio below which a difference is claimed.

    No difference is claimed if passes disagree about its direction. A few passes show too little of
    the noise, so the noise of the subject's other points is included.
    """
    middle = ratios.median(measured)
    band = min(ratios.band_of(twin).low, LEAST_GAIN)
    if len(twin) < ENOUGH_PASSES:
        band = min(band, ratios.band_of(everywhere).low)
    if 1.0 in ratios.spread(measured):
        band = min(band, middle)
    return round(middle, _DIGITS), round(band, _DIGITS)
