"""Statistics of timings: ratios, the band of a model against itself, and significance of differences.

All functions are pure. A *ratio* is the time of a model over that of the original, both measured alternately
in one process; each process contributes one ratio, the median over its rounds. The *band* results from timing
the original against itself in the same way: ratios inside it are noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from graphopt.util.lazy_dataclass import dataclass

Conclusion = Literal["faster", "slower", "no difference", "too few processes"]

#: Minimum number of processes for a claim.
LEAST_PROCESSES = 5
#: Minimum ratio that is claimed to be a difference.
_LEAST = 1.01
#: Relative standard error of each median, and number of rounds, at which a process stops early.
_PRECISE = 0.003
_LEAST_ROUNDS = 10
#: A difference is settled at this multiple of the band's distance from 1 (logarithmic).
_CLEAR = 3.0


@dataclass(frozen=True)
class Band:
    """A range of ratios."""

    low: float
    high: float

    def __contains__(self, ratio: float) -> bool:
        return self.low <= ratio <= self.high


@dataclass(frozen=True)
class Comparison:
    """The comparison of a model with the original.

    Attributes:
        ratio: median of the processes' ratios.
        spread: their 5th to 95th percentile.
        conclusion: the supported claim.
    """

    ratio: float
    spread: Band
    conclusion: Conclusion


def turn_order(names: Sequence[str], index: int) -> list[str]:
    """``names`` in the order of the turn ``index``.

    The order is rotated by one every two turns, and reversed every second turn. All names are first
    equally often, and each precedes every other name as often as it follows it.
    """
    start = index // 2 % len(names)
    order = [*names[start:], *names[:start]]
    return order if index % 2 == 0 else order[::-1]


def median(values: Sequence[float]) -> float:
    """The median."""
    return float(np.median(values))


def spread(values: Sequence[float]) -> Band:
    """The 5th to 95th percentile."""
    low, high = np.percentile(values, [5, 95])
    return Band(float(low), float(high))


def band_of(twin: Sequence[float]) -> Band:
    """The band of ratios between two sessions of the same model.

    Each ratio counts with its inverse, because the choice of the original is arbitrary: the band always
    contains 1. The band extends at least 1 % to either side, because a longer path or another environment
    changes times by 1 %.
    """
    around = spread([*twin, *(1 / ratio for ratio in twin)])
    return Band(min(around.low, 1 / _LEAST), max(around.high, _LEAST))


def compare(ratios: Sequence[float], band: Band) -> Comparison:
    """The claim that the ratios of several processes support.

    A difference is claimed if the median is outside the band, and all ratios except the extreme ones are on
    the same side of 1.
    """
    middle, around = median(ratios), spread(ratios)
    conclusion: Conclusion = "no difference"
    if middle not in band and 1.0 not in around:
        conclusion = "faster" if middle < 1 else "slower"
        if len(ratios) < LEAST_PROCESSES:
            conclusion = "too few processes"
    return Comparison(middle, around, conclusion)


def claims_are_final(ratios: Sequence[Sequence[float]], twin: Sequence[float]) -> bool:
    """Whether more processes would not change the claims.

    True if there are enough processes, and every model is so much faster or slower than the original that
    each of its ratios is well outside the band.
    """
    if len(twin) < LEAST_PROCESSES:
        return False
    band = band_of(twin)
    reach = _CLEAR * max(math.log(band.high), -math.log(band.low))
    return all(
        all(math.log(ratio) > reach for ratio in found) or all(math.log(ratio) < -reach for ratio in found)
        for found in ratios
    )


def claims_are_nearly_final(ratios: Sequence[Sequence[float]], twin: Sequence[float]) -> bool:
    """Whether more processes would hardly change the claims, including claims of no difference.

    Like :func:`claims_are_final`, but a model is also settled if each of its ratios is within the band.
    """
    if len(twin) < LEAST_PROCESSES:
        return False
    band = band_of(twin)
    return all(claims_are_final([found], twin) or all(ratio in band for ratio in found) for found in ratios)


def is_precise(rounds: Sequence[Sequence[float]]) -> bool:
    """Whether the median of each series of round ratios is precise enough to stop."""
    return all(len(series) >= _LEAST_ROUNDS and _error(series) < _PRECISE for series in rounds)


def _error(series: Sequence[float]) -> float:
    """The relative standard error of the median, from the quartiles (assuming normal noise)."""
    low, middle, high = np.percentile(series, [25, 50, 75])
    return float(1.2533 * (high - low) / 1.349 / math.sqrt(len(series)) / middle)
