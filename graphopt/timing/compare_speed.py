"""The timing harness: compare models by running them alternately, in fresh processes.

Sources of error, and the countermeasures:

- **Process layout**: several fresh processes, and the median of their ratios.
- **Order**: sessions are created, and take turns, in a different order each time.
- **Drift** (clock rates, other users of the machine): the models run alternately within a process, and only
  times of the same round are divided by one another.
- **Outliers**: the fastest run of a turn counts, and the median of rounds and processes.
- **Noise mistaken for a result**: the original runs twice, as if it were two models. The 5th to 95th
  percentile of their ratios is the band inside which no difference is claimed.

Times are measured by :func:`time.perf_counter` around one run. On CUDA inputs and outputs are bound on the
device, and a run ends when its results are available.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace

import numpy as np

from graphopt.errors import RuntimeFailure
from graphopt.ort.session import Source
from graphopt.process.child import Child
from graphopt.timing import ratios
from graphopt.timing.alternating_runs import RaceLimits, Setup, race, round_ratios
from graphopt.timing.ratios import Band, Comparison
from graphopt.util.lazy_dataclass import dataclass

#: Name of the original's second session; no model has this name.
_TWIN = "\0twin"
#: Wall-clock seconds for one process in addition to its share.
_PATIENCE = 600.0

#: Receives the progress of the measurement, from 0 to 1.
Advance = Callable[[float], None]
#: Whether the ratios of the models and of the twin suffice.
Enough = Callable[[Sequence[Sequence[float]], Sequence[float]], bool]


@dataclass(frozen=True)
class Speed:
    """The speed of a model.

    Attributes:
        p50, p90, p99: percentiles of all runs, in milliseconds.
        times: the times of all runs in milliseconds, in the order of the runs.
        ratios: time relative to the original, one per process.
        comparison: conclusion from the ratios; ``None`` for the original.
    """

    p50: float
    p90: float
    p99: float
    runs: int
    ratios: tuple[float, ...]
    comparison: Comparison | None
    times: tuple[float, ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class Timing:
    """Models timed alternately.

    Attributes:
        speeds: speeds by name, the original first.
        twin: ratios of the original to itself, one per process.
        rounds: number of rounds in all processes.
    """

    speeds: dict[str, Speed]
    twin: tuple[float, ...]
    band: Band
    rounds: int
    seconds: float

    @property
    def processes(self) -> int:
        return len(self.twin)


def compare_speed(
    sources: Mapping[str, Source],
    setup: Setup,
    limits: RaceLimits | None = None,
    advance: Advance | None = None,
    enough: Enough = ratios.claims_are_final,
) -> Timing:
    """Time models with the same inputs.

    >>> timing = compare_speed({"a": "a.onnx", "b": "b.onnx"}, Setup(feeds))  # doctest: +SKIP
    >>> timing.speeds["b"].comparison                                         # doctest: +SKIP
    Comparison(ratio=0.88, spread=Band(low=0.87, high=0.89), conclusion='faster')

    Args:
        sources: the models by name; the first is the original.
        limits: extent of the measurement; by default 40 rounds in each of 7 processes.
        enough: called after each process; stops the measurement if true.

    Raises:
        RuntimeFailure: a model does not run.
    """
    limits = limits or RaceLimits()
    first, *others = sources
    raced = {**sources, _TWIN: sources[first]}
    if first in setup.choices:
        setup = replace(setup, choices={**setup.choices, _TWIN: setup.choices[first]})
    found: dict[str, list[float]] = {name: [] for name in [*others, _TWIN]}
    runs: dict[str, list[float]] = {name: [] for name in sources}
    rounds = 0
    begin = time.perf_counter()
    for index in range(limits.processes):
        if advance is not None:
            advance(index / limits.processes)
        with Child(preload=["onnxruntime", "graphopt.timing.alternating_runs"], fresh=True) as child:
            patience, doing = limits.seconds + _PATIENCE, f"timing {', '.join(sources)}"
            times = child.call(race, raced, setup, limits, index, timeout=patience, doing=doing)
        rounds += len(times[first])
        for name, series in found.items():
            series.append(ratios.median(round_ratios(times, name, first)))
        for name, series in runs.items():
            series.extend(seconds for turn in times[name] for seconds in turn)
        late = time.perf_counter() - begin > limits.seconds
        if late or (others and enough([found[name] for name in others], found[_TWIN])):
            break
    band = ratios.band_of(found[_TWIN])
    speeds = {name: _speed(runs[name], found.get(name), band) for name in sources}
    return Timing(speeds, tuple(found[_TWIN]), band, rounds, time.perf_counter() - begin)


def _speed(runs: list[float], found: list[float] | None, band: Band) -> Speed:
    if not runs:
        raise RuntimeFailure("nothing was timed")
    p50, p90, p99 = (float(value) * 1e3 for value in np.percentile(runs, [50, 90, 99]))
    comparison = None if found is None else ratios.compare(found, band)
    times = tuple(round(seconds * 1e3, 6) for seconds in runs)
    return Speed(p50, p90, p99, len(runs), tuple(found or ()), comparison, times)
