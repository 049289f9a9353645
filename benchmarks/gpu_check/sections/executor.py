"""The executor with values on the device: specialization, CUDA graphs, and a decoding loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

import graphopt
from benchmarks.gpu_check.example_models import Case, decoder, sample
from benchmarks.gpu_check.native import require_backend
from benchmarks.gpu_check.rows import Column, error, number, ratio
from benchmarks.gpu_check.running import (
    TOLERANCE,
    BoundSession,
    Variant,
    alternate,
    complaint,
    milliseconds,
    on_cpu,
    speedup,
)
from benchmarks.gpu_check.running import error as error_of
from benchmarks.gpu_check.section import Bench, Measure, NotApplicable, Outcome, Section
from graphopt.executor.executor_options import ExecutorOptions
from graphopt.ort.devices import Device

#: Runs before the measurement: the first ones are profiled, and then specialized.
_WARM_UP = 3
_SECONDS, _BRIEFLY = 1.0, 0.1
#: Decoding steps, and pairs of an input and the output that is its next value.
_STEPS = 6
_STATE = [("past_key_values.*", "present.*")]


def _items(bench: Bench) -> dict[str, Measure]:
    return {
        "bound values": partial(_bound, bench),
        "bound values, CUDA graph": partial(_bound, bench, cuda_graph=True),
        "bound values, kernels": partial(_bound, bench, fuser="native"),
        "decoding loop": partial(_loop, bench),
    }


def values_on(device: Device, feeds: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Values of onnxruntime on the device."""
    import onnxruntime

    return {
        name: onnxruntime.OrtValue.ortvalue_from_numpy(array, device.kind, device.index)
        for name, array in feeds.items()
    }


def _bound(bench: Bench, cuda_graph: bool = False, fuser: str = "builtin") -> Outcome:
    device = bench.device
    if cuda_graph and not device.capabilities.captures_graphs:
        raise NotApplicable(f"the {device} has no CUDA graphs")
    if fuser == "native":
        require_backend(device)
    case = sample("transformer", bench)
    expected = on_cpu(case.path, case.feeds)
    options = ExecutorOptions(cuda_graph=cuda_graph)
    values = values_on(device, case.feeds)
    worst = 0.0
    with graphopt.fuser(fuser):
        executor = graphopt.compile(case.path, options, device=str(device).lower())
        for _ in range(_WARM_UP):
            found = executor.run_bound(values)
            worst = max(worst, error_of(expected, [value.numpy() for value in found.values()]))
    runs: dict[str, Callable[[], object]] = {
        "session": BoundSession(Variant(case.path), case.feeds, expected, device, tf32=False),
        "executor": lambda: executor.run_bound(values),
    }
    times = alternate(runs, _BRIEFLY if bench.is_rehearsal else _SECONDS)
    figures = {f"ms {key}": milliseconds(found) for key, found in times.items()}
    figures |= {"error": worst, "speedup": speedup(times, "executor", "session")}
    return Outcome(figures, complaint(worst, TOLERANCE), note=f"plan: {executor.last_plan}")


def _loop(bench: Bench) -> Outcome:
    """Decoding steps with the cache on the device, compared with steps on the CPU."""
    case = decoder(bench, np.float32)
    device = str(bench.device).lower()
    found, expected = (_decoded(case, name) for name in (device, "cpu"))
    worst = max(error_of([one], [two]) for one, two in zip(expected, found, strict=True))
    return Outcome({"error": worst}, complaint(worst, case.tolerance), note=f"{_STEPS} steps")


def _decoded(case: Case, device: str) -> list[np.ndarray]:
    loop = graphopt.compile(case.path, device=device).loop(_STATE)
    feeds = dict(case.feeds)
    logits = []
    for step in range(_STEPS):
        logits.append(np.array(loop(feeds)["logits"]))
        mask = case.feeds["attention_mask"]
        feeds = {
            "input_ids": np.argmax(logits[-1][:, -1:], -1),
            "attention_mask": np.ones((1, mask.shape[1] + step + 1), np.int64),
            "position_ids": case.feeds["position_ids"] + step + 1,
        }
    return logits


SECTION = Section(
    "executor",
    "The executor with values on the device",
    35.0,
    (
        Column("error", "error", error),
        Column("ms session", "session of the original (ms)", number(3)),
        Column("ms executor", "executor (ms)", number(3)),
        Column("speedup", "speedup", ratio),
    ),
    _items,
)
