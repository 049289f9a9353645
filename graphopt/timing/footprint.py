"""Measure the costs of a model besides time: session creation, memory, node placement, hot operators.

:func:`measure` runs in an otherwise empty process; :func:`footprint` starts such processes.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from graphopt import publish
from graphopt.ort import session
from graphopt.ort.session import Source
from graphopt.process.child import Child
from graphopt.process.resource_usage import ResourceMeter
from graphopt.timing import ratios
from graphopt.timing.alternating_runs import Setup, known_feeds, runner
from graphopt.util.lazy_dataclass import dataclass

#: Number of profiled runs, after one that is not counted.
_PROFILED = 5
#: Wall-clock seconds for one process.
_PATIENCE = 600.0


@dataclass(frozen=True)
class HotOp:
    """The cost of all nodes of one operator in one run (medians over several runs).

    Attributes:
        op: the operator that onnxruntime ran, which may be a fusion of several.
        provider: its execution provider (``CPU``, ``CUDA``).
        nodes: number of kernel runs; in a loop, one per iteration.
        milliseconds: their time, including nested graphs.
        share: share of the time of all kernels, including nested graphs.
    """

    op: str
    provider: str
    nodes: float
    milliseconds: float
    share: float


@dataclass(frozen=True)
class Placement:
    """The placement of nodes on execution providers.

    Attributes:
        nodes: number of nodes assigned by onnxruntime, by provider (some are fused afterwards).
        kernels: number of kernel runs in one run of the model, by provider.
        copies: copies between host and device in one run (Memcpy nodes).
        hot: operators by cost, the most expensive first.
    """

    nodes: dict[str, int] = field(default_factory=dict)
    kernels: dict[str, int] = field(default_factory=dict)
    copies: int = 0
    hot: tuple[HotOp, ...] = ()


@dataclass(frozen=True)
class Footprint:
    """The costs of a model besides time.

    Attributes:
        session_seconds: seconds from the file to a usable session, median over processes.
        peak_bytes: growth of the process by the session and first runs, median over processes.
    """

    session_seconds: float
    peak_bytes: int
    placement: Placement
    outputs: list[Any]


def footprint(
    source: Source, setup: Setup, checked: Setup | None = None, processes: int = 3, name: str = ""
) -> Footprint:
    """Measure one model in fresh processes.

    Args:
        checked: settings of the session that computes the outputs, if they differ.
        name: name of the model in ``setup``.

    Raises:
        RuntimeFailure: the model does not run.
    """
    checked = checked or setup.eager()
    seconds: list[float] = []
    peaks: list[float] = []
    for number in range(max(1, processes)):
        with Child(preload=["onnxruntime", "graphopt.timing.footprint"], fresh=True) as child:
            duration, peak = child.call(measure, source, setup, name, timeout=_PATIENCE)
            if number == 0:
                placement, outputs = child.call(profile, source, setup, checked, name, timeout=_PATIENCE)
        seconds.append(duration)
        peaks.append(peak)
    return Footprint(ratios.median(seconds), int(ratios.median(peaks)), placement, outputs)


def measure(source: Source, setup: Setup, name: str) -> tuple[float, int]:
    """Seconds of session creation, and bytes of the session and three runs."""
    with ResourceMeter() as meter:
        begin = time.perf_counter()
        made = setup.session(source, name)
        seconds = time.perf_counter() - begin
        run = runner(made, setup)
        for _ in range(2):
            run()
    return seconds, meter.peak_bytes


def profile(source: Source, setup: Setup, checked: Setup, name: str) -> tuple[Placement, list[Any]]:
    """The placement of the nodes of a model, and its outputs."""
    made = checked.session(source, name)
    outputs = session.run(made, known_feeds(made, checked.feeds))
    del made
    with publish.ScratchFolder() as folder:
        made = setup.eager().session(source, name, profile=str(folder / "profile"))
        assigned: Counter[str] = Counter()
        for part in made.get_provider_graph_assignment_info():
            assigned[_short(part.ep_name)] += len(part.get_nodes())
        run = runner(made, setup)  # includes the first run
        for _ in range(_PROFILED):
            run()
        events = json.loads(Path(made.end_profiling()).read_text(encoding="utf-8"))
    return read_profile(events, dict(assigned)), outputs


def read_profile(events: Iterable[Mapping[str, Any]], assigned: dict[str, int]) -> Placement:
    """Sum up the events of an onnxruntime profile, without the first run.

    Args:
        events: events of the profile's JSON; times in microseconds.
        assigned: number of nodes by provider, copied to the result.
    """
    events = list(events)
    runs = [event for event in events if event.get("name") == "model_run"]
    kernels = [
        event for event in events if event.get("cat") == "Node" and event["name"].endswith("_kernel_time")
    ]
    costs = [_costs(kernels, run["ts"], run["ts"] + run["dur"]) for run in runs[1:] or runs]
    keys = sorted({key for cost in costs for key in cost})
    none = (0, 0.0)
    number = {key: ratios.median([cost.get(key, none)[0] for cost in costs]) for key in keys}
    duration = {key: ratios.median([cost.get(key, none)[1] for cost in costs]) for key in keys}
    total = sum(duration.values()) or 1.0
    by_provider: Counter[str] = Counter()
    for (_, provider), count in number.items():
        by_provider[provider] += round(count)
    hot = tuple(
        HotOp(
            op, provider, number[op, provider], duration[op, provider] / 1e3, duration[op, provider] / total
        )
        for op, provider in sorted(keys, key=lambda key: -duration[key])
    )
    copies = sum(round(count) for (op, _), count in number.items() if op.startswith("Memcpy"))
    return Placement(assigned, dict(by_provider), copies, hot)


def _costs(
    kernels: Iterable[Mapping[str, Any]], begin: float, end: float
) -> dict[tuple[str, str], tuple[int, float]]:
    """Number and microseconds of kernel runs from ``begin`` to ``end``, by operator and provider."""
    found: dict[tuple[str, str], tuple[int, float]] = {}
    for event in kernels:
        if begin <= event["ts"] <= end:
            key = (event["args"].get("op_name", ""), _short(event["args"].get("provider", "")))
            count, duration = found.get(key, (0, 0.0))
            found[key] = (count + 1, duration + event["dur"])
    return found


def _short(provider: str) -> str:
    return provider.removesuffix("ExecutionProvider")
