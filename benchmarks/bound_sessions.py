"""Time sessions with bound inputs and outputs alternately, in a separate process.

Only the model is timed: no output is allocated, and nothing is copied to numpy. A copy of 64 MB, read and
written once, is timed alternately, too, as a measure of the current memory bandwidth.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.timed_turns import time_turns, timer
from graphopt.ort import session
from graphopt.ort.session_options import SessionChoice
from graphopt.timing import ratios

COPY = "copy"
COPIED = 64 << 20
_TURN = 0.004


@dataclass(frozen=True)
class Racer:
    """A model and its session options."""

    model: bytes
    choice: SessionChoice | None = None


def race(
    racers: Mapping[str, Racer], feeds: dict[str, np.ndarray], threads: int, seconds: float, index: int
) -> dict[str, list[float]]:
    """Seconds of each session, and of the copy, by round: the fastest run of each turn."""
    running: dict[str, Callable[[], object]] = {COPY: _copier(threads)}
    for name in ratios.turn_order(list(racers), index):
        running[name] = _bound(racers[name], feeds, threads)
    timers = {name: timer(run) for name, run in running.items()}
    return time_turns(timers, seconds, turn=_TURN, first=index)


def _bound(racer: Racer, feeds: dict[str, np.ndarray], threads: int) -> Callable[[], object]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.force_spinning_stop", "1")
    made = session.create(racer.model, options=options, choice=racer.choice, threads=threads)
    outputs = made.run(None, feeds)
    binding = made.io_binding()
    kept: list[Any] = []
    for name, array in feeds.items():
        value = onnxruntime.OrtValue.ortvalue_from_numpy(array)
        binding.bind_ortvalue_input(name, value)
        kept.append(value)
    for item, array in zip(made.get_outputs(), outputs, strict=True):
        value = onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))
        binding.bind_ortvalue_output(item.name, value)
        kept.append(value)
    return lambda _kept=kept: made.run_with_iobinding(binding)  # type: ignore[misc]


def _copier(threads: int) -> Callable[[], object]:
    source = np.ones(COPIED, np.uint8)
    target = np.zeros(COPIED, np.uint8)
    if threads == 1:
        return lambda: np.copyto(target, source)
    step = COPIED // threads
    parts = [slice(number * step, (number + 1) * step) for number in range(threads)]

    def run() -> None:
        workers = [threading.Thread(target=np.copyto, args=(target[part], source[part])) for part in parts]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    return run
