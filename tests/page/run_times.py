"""Measurements with known figures, for pages."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphopt.ort.devices import CPU, Device
from graphopt.page.run_time import ModelRuns, RunTime
from graphopt.timing.bench import Result, Row
from graphopt.timing.compare_speed import Speed, Timing
from graphopt.timing.footprint import Footprint, Placement
from graphopt.timing.machine_peaks import Peak, Peaks
from graphopt.timing.memory_over_time import MemoryStep
from graphopt.timing.ratios import Band, Comparison
from graphopt.timing.roofline import KernelTime, Roofline

PEAKS = Peaks({"float": Peak.of([100e9])}, Peak.of([10e9]))


def kernel_time(name: str, op: str, milliseconds: float, *originals: str) -> KernelTime:
    """A kernel at 1 % of both peaks."""
    roof = milliseconds / 100
    return KernelTime(
        name, op, originals, milliseconds, 2 * milliseconds, 1, "float", 10**6, 10**5, roof, roof
    )


def model_runs(name: str, kernels: Sequence[KernelTime], providers: Sequence[str]) -> ModelRuns:
    """The runs of a model whose memory grows with each kernel."""
    steps = [MemoryStep(kernel.name, float(row), 1000 * (row + 1)) for row, kernel in enumerate(kernels)]
    placed = {kernel.name: provider for kernel, provider in zip(kernels, providers, strict=True)}
    return ModelRuns(Roofline(name, PEAKS, tuple(kernels)), placed, steps)


def run_time(kernels: Sequence[KernelTime], providers: Sequence[str], device: Device = CPU) -> RunTime:
    """An original and a result with the same kernels, of which the result is faster."""
    band, times = Band(0.98, 1.02), tuple(np.linspace(1, 2, 100).tolist())
    rows, speeds = [], {}
    for name, comparison in (
        ("original", None),
        ("optimized", Comparison(0.8, Band(0.79, 0.81), "faster")),
    ):
        ratios = () if comparison is None else (0.79, 0.8, 0.81)
        speeds[name] = Speed(1.5, 1.9, 2.0, 100, ratios, comparison, times)
        rows.append(Row(name, 2, speeds[name], Footprint(0.1, 1, Placement(), [])))
    result = Result("x [3]", rows, Timing(speeds, (0.99, 1.01), band, 10, 1.0), exact_products=False)
    runs = {row.name: model_runs(row.name, kernels, providers) for row in rows}
    return RunTime(result, runs, device, 1, "1.0")
