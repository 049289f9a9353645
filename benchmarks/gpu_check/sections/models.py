"""Samples and networks: original, -O3, native kernels and CUDA graphs, with errors and latency."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import onnx

import graphopt
from benchmarks.gpu_check.example_models import Case, cases
from benchmarks.gpu_check.native import kernel_levels, require_backend
from benchmarks.gpu_check.rows import Column, error, number, ratio
from benchmarks.gpu_check.running import (
    BoundSession,
    Variant,
    alternate,
    complaint,
    milliseconds,
    on_cpu,
    on_device,
    speedup,
)
from benchmarks.gpu_check.running import error as error_of
from benchmarks.gpu_check.section import Bench, Measure, NotApplicable, Outcome, Section
from benchmarks.measured_models import count_nodes
from graphopt import config
from graphopt.errors import NoCompiler, RuntimeFailure
from graphopt.fusion.kernel_library import common_library
from graphopt.ort.session_options import SessionChoice
from graphopt.specialization.cuda_graphs.obstacles import copy_in, obstacles
from graphopt.timing import ratios

ORIGINAL, TWIN, BUILTIN, NATIVE, GRAPH = "original", "original again", "-O3", "native", "CUDA graph"
#: Seconds of the alternate timing of one model.
_SECONDS, _BRIEFLY = 1.5, 0.1


def _items(bench: Bench) -> dict[str, Measure]:
    return {name: partial(_measure, bench, name, make) for name, make in cases(bench).items()}


@dataclass
class _Race:
    """The variants of one model that run, with their errors.

    Attributes:
        notes: reasons for absent variants.
        failures: errors of variants.
    """

    bench: Bench
    case: Case
    expected: list[Any]
    runs: dict[str, Callable[[], object]] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def enter(self, name: str, make: Callable[[], Variant]) -> None:
        """Add a variant, unless it does not apply or fails."""
        device, feeds = self.bench.device, self.case.feeds
        try:
            variant = make()
            self.errors[name] = error_of(self.expected, on_device(variant, feeds, self.expected, device))
            self.runs[name] = BoundSession(variant, feeds, self.expected, device)
        except (NotApplicable, NoCompiler) as reason:
            self.notes.append(f"{name}: {reason}")
        except Exception as failure:  # the other variants are measured nevertheless
            self.failures.append(f"{name}: {failure}")


def _measure(bench: Bench, name: str, make: Callable[[], Case]) -> Outcome:
    case = make()
    race = _Race(bench, case, on_cpu(case.path, case.feeds))
    plain = Variant(case.path)
    optimized: dict[str, Variant] = {}
    job = _Job(bench, case, name)
    race.enter(ORIGINAL, lambda: plain)
    if ORIGINAL in race.runs:
        race.runs[TWIN] = BoundSession(plain, case.feeds, race.expected, bench.device)
    race.enter(BUILTIN, lambda: optimized.setdefault(BUILTIN, job.optimized("builtin")))
    race.enter(NATIVE, lambda: optimized.setdefault(NATIVE, job.optimized("native")))
    race.enter(GRAPH, lambda: job.captured("native" if NATIVE in race.runs else "builtin"))
    figures = {f"error {key}": value for key, value in race.errors.items()}
    figures |= {"nodes": count_nodes(case.path)}
    figures |= {f"nodes {key}": count_nodes(variant.path) for key, variant in optimized.items()}
    if ORIGINAL in race.runs:
        figures |= _timed(race.runs, _BRIEFLY if bench.is_rehearsal else _SECONDS)
    wrong = [
        f"{key}: {found}" for key, value in race.errors.items() if (found := complaint(value, case.tolerance))
    ]
    return Outcome(figures, "; ".join(wrong), "; ".join(race.failures), "; ".join(race.notes))


def _timed(runs: Mapping[str, Callable[[], object]], seconds: float) -> dict[str, Any]:
    """Latencies, speedups, and the band of the original against itself."""
    times = alternate(runs, seconds)
    figures: dict[str, Any] = {
        f"ms {key}": milliseconds(found) for key, found in times.items() if key != TWIN
    }
    others = [key for key in times if key not in (ORIGINAL, TWIN)]
    figures |= {f"speedup {key}": speedup(times, key, ORIGINAL) for key in others}
    if TWIN in times:
        band = ratios.band_of([a / b for a, b in zip(times[TWIN], times[ORIGINAL], strict=True)])
        figures["band"] = [band.low, band.high]
    return figures


@dataclass(frozen=True)
class _Job:
    """Optimizes one model for the device."""

    bench: Bench
    case: Case
    name: str

    def optimized(self, fuser: str, dims: Mapping[str, int] | None = None) -> Variant:
        """The model after the passes of ``fuser``, with a library of its kernels."""
        device = self.bench.device
        if fuser == "native":
            require_backend(device)
        model, _report = graphopt.optimize(
            self.case.path, device=str(device).lower(), fuser=fuser, dims=dict(dims or {}), verify=False
        )
        words = [self.name.replace(" ", "_"), fuser, *(["static"] if dims else []), "onnx"]
        path = self.bench.scratch / ".".join(words)
        graphopt.save(model, path)
        if fuser != "native":
            return Variant(path)
        library = common_library([model], config.current(), device, kernel_levels(device))
        if library is None:
            raise NotApplicable("it has no groups")
        if library.path is None:
            raise RuntimeFailure("; ".join(library.remarks))
        return Variant(path, SessionChoice(libraries=(str(library.path),)))

    def captured(self, fuser: str) -> Variant:
        """The optimized model for the shapes of the inputs, which a graph fixes anyway, with CUDA graphs.

        Raises:
            NotApplicable: they are off, for the first of the reasons.
        """
        device = self.bench.device
        if not device.capabilities.captures_graphs:
            raise NotApplicable(f"the {device} has none")
        variant = self.optimized(fuser, sizes_of(self.case))
        reason = next(obstacles(graphopt.load_model(variant.path), device), None)
        if reason is not None:
            raise NotApplicable(reason)
        captured = Variant(variant.path, variant.choice, {"enable_cuda_graph": "1"})
        try:
            captured.session(device)
        except RuntimeFailure as failure:
            copied = copy_in(graphopt.load_model(variant.path), device)
            raise NotApplicable(copied or f"onnxruntime rejects them: {failure.message}") from failure
        return captured


def sizes_of(case: Case) -> dict[str, int]:
    """The sizes of the dynamic dims of the inputs of ``case``, by name."""
    found: dict[str, int] = {}
    for port in onnx.load(case.path, load_external_data=False).graph.input:
        if port.name in case.feeds:
            sizes = zip(port.type.tensor_type.shape.dim, case.feeds[port.name].shape, strict=True)
            found |= {dim.dim_param: size for dim, size in sizes if dim.dim_param}
    return found


SECTION = Section(
    "models",
    "Samples and networks",
    160.0,
    (
        Column("nodes", "nodes"),
        Column("nodes native", "native"),
        *(Column(f"error {key}", f"error {key}", error) for key in (ORIGINAL, BUILTIN, NATIVE)),
        *(Column(f"ms {key}", f"{key} (ms)", number(3)) for key in (ORIGINAL, BUILTIN, NATIVE, GRAPH)),
        *(Column(f"speedup {key}", f"{key} ×", ratio) for key in (BUILTIN, NATIVE, GRAPH)),
        Column("band", "A/A", lambda band: f"{band[0]:.2f} … {band[1]:.2f}"),
    ),
    _items,
)
