"""Time functions alternately: each has a turn of several runs per round, in an order that changes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

from graphopt.timing import ratios

#: Runs a function a number of times, and returns the seconds of each run.
Timer = Callable[[int], list[float]]
_LEAST_ROUNDS = 5


def timer(run: Callable[[], object]) -> Timer:
    """The timer of a function."""

    def times(runs: int) -> list[float]:
        seconds = []
        for _ in range(runs):
            begin = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - begin)
        return seconds

    return times


def time_turns(
    timers: Mapping[str, Timer],
    seconds: float,
    *,
    turn: float,
    bounds: tuple[int, int] = (2, 50),
    first: int = 0,
) -> dict[str, list[float]]:
    """The fastest seconds of each turn, by name and round. The first run of each function does not count.

    Args:
        seconds: time for all rounds; there are at least five.
        turn: seconds of a turn.
        bounds: bounds of the number of runs of a turn.
        first: number of the first round, which determines the order of turns.
    """
    counts = {}
    for name, run in timers.items():
        fastest = min(run(4)[1:])
        counts[name] = max(bounds[0], min(bounds[1], math.ceil(turn / max(fastest, 1e-7))))
    found: dict[str, list[float]] = {name: [] for name in timers}
    stop, number = time.perf_counter() + seconds, 0
    while number < _LEAST_ROUNDS or time.perf_counter() < stop:
        for name in ratios.turn_order(list(timers), first + number):
            found[name].append(min(timers[name](counts[name])))
        number += 1
    return found
