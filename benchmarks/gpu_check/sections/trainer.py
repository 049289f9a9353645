"""Training steps on the device: losses compared with those on the CPU, and times."""

from __future__ import annotations

import time
from functools import partial

import graphopt
from benchmarks.gpu_check.native import require_backend
from benchmarks.gpu_check.rows import Column, error, number
from benchmarks.gpu_check.running import complaint
from benchmarks.gpu_check.section import Bench, Measure, Outcome, Section
from benchmarks.training_models import TASKS, Task
from graphopt import config, ir
from graphopt.timing import ratios

#: Steps on a device and in a rehearsal. Losses drift apart with the number of steps, because sums are rounded
#: differently.
_STEPS, _REHEARSED = 30, 8
_TOLERANCE = 1e-2
_TASKS = ("digits", "gpt", "lstm")


def _items(bench: Bench) -> dict[str, Measure]:
    items: dict[str, Measure] = {name: partial(_measure, bench, TASKS[name], None) for name in _TASKS}
    name = "digits" if bench.is_rehearsal else "gpt"  # kernels of few groups are compiled quickly
    items[f"{name}, kernels"] = partial(_measure, bench, TASKS[name], "native")
    return items


def _measure(bench: Bench, task: Task, fuser: str | None) -> Outcome:
    if fuser == "native":
        require_backend(bench.device)
    device = str(bench.device).lower()
    steps = _REHEARSED if bench.is_rehearsal else _STEPS
    losses, seconds = trained(task, device, fuser, steps)
    expected, _ = trained(task, "cpu", None, steps)
    apart = max(abs(one - two) / abs(two) for one, two in zip(losses, expected, strict=True))
    figures = {
        "error": apart,
        "ms": ratios.median(seconds[steps // 2 :]) * 1e3,
        "first": losses[0],
        "last": losses[-1],
    }
    return Outcome(figures, complaint(apart, _TOLERANCE))


def trained(task: Task, device: str, fuser: str | None, steps: int) -> tuple[list[float], list[float]]:
    """The loss and the seconds of each step."""
    model = ir.from_proto(task.model())
    with config.patch(device=device):
        step = graphopt.train_step(model, task.loss, task.optimizer, fuser=fuser, **task.settings)
    trainer = graphopt.Trainer(step, device=device)
    losses, seconds = [], []
    for feeds in task.batches(steps):
        begin = time.perf_counter()
        losses.append(trainer.step(feeds))
        seconds.append(time.perf_counter() - begin)
    return losses, seconds


SECTION = Section(
    "trainer",
    "Training steps, compared with the CPU",
    35.0,
    (
        Column("error", "error of losses", error),
        Column("ms", "step (ms)", number(3)),
        Column("first", "first loss", number(3)),
        Column("last", "last loss", number(3)),
    ),
    _items,
)
