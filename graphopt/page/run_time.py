"""Measure the runs of models for a page: latencies, the time of each kernel, and memory over time."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from graphopt import ir
from graphopt.inputs.feeds import InputOptions
from graphopt.ort.devices import Device
from graphopt.timing.bench import Advance, Bench, Result
from graphopt.timing.bench_rooflines import bench_profiles, rooflines_of
from graphopt.timing.kernel_profile import KernelProfile
from graphopt.timing.machine_peaks import Peak, Peaks
from graphopt.timing.memory_over_time import MemoryStep, memory_over_time
from graphopt.timing.roofline import Roofline, kernel_events, kernel_name
from graphopt.util.disk_store import Store
from graphopt.util.lazy_dataclass import dataclass

#: The peaks of a device whose peaks are not measured.
UNKNOWN_PEAKS = Peaks({}, Peak(0.0, 0.0, 0.0, 0))


@dataclass(frozen=True)
class ModelRuns:
    """The runs of one model.

    Attributes:
        roofline: its kernels; their originals are nodes of this model itself.
        providers: the execution provider of each kernel, by its name.
        memory: live bytes over time.
    """

    roofline: Roofline
    providers: Mapping[str, str]
    memory: Sequence[MemoryStep]


@dataclass(frozen=True)
class RunTime:
    """The runs of the models of a page, on the same inputs.

    Attributes:
        result: latencies, the original first.
        runs: the runs of each model that does not fail, by name.
        device: the device.
        threads: threads inside one operator; ``None`` for onnxruntime's choice.
        version: onnxruntime's version.
    """

    result: Result
    runs: Mapping[str, ModelRuns]
    device: Device
    threads: int | None
    version: str

    @property
    def has_peaks(self) -> bool:
        """Whether kernels have a share of the peaks of the machine."""
        return any(run.roofline.peaks != UNKNOWN_PEAKS for run in self.runs.values())


def measure_run_time(
    bench: Bench, inputs: InputOptions, store: Store, advance: Advance = lambda done, text: None
) -> RunTime:
    """Time the models of ``bench`` alternately, then profile each.

    Raises:
        UsageError: the inputs do not fit the original.
        RuntimeFailure: the original does not run.
        ResourceLimit: the measured peaks can't be stored.
    """
    result = bench.run(inputs, advance)
    advance(None, "profiling")
    return profile_runs(bench, result, inputs, store)


def profile_runs(bench: Bench, result: Result, inputs: InputOptions, store: Store) -> RunTime:
    """Profile the models of ``bench`` that do not fail in ``result``, its measurement on the same inputs.

    Peaks are those of the CPU; kernels of other devices have no share of a peak.

    Raises:
        RuntimeFailure: a model does not run.
        ResourceLimit: the measured peaks can't be stored.
    """
    failed = [row.name for row in result.rows if row.failure is not None]
    profiles = bench_profiles(bench, inputs, besides=failed)
    if bench.device.capabilities.is_host:
        rooflines = rooflines_of(profiles, store, bench.threads)
    else:
        rooflines = [one.roofline(UNKNOWN_PEAKS) for one in profiles]
    models = {one.name: one.model for one in bench.contestants}
    runs = {
        profile.name: model_runs(profile, roofline, _outputs(models[profile.name]))
        for profile, roofline in zip(profiles, rooflines, strict=True)
    }
    return RunTime(result, runs, bench.device, bench.threads, bench.version)


def model_runs(profile: KernelProfile, roofline: Roofline, returned: Collection[str]) -> ModelRuns:
    """The runs of a model with outputs named ``returned``."""
    providers = {
        kernel_name(event)[0]: str(event["args"].get("provider", ""))
        for event in kernel_events(profile.events)
    }
    return ModelRuns(roofline, providers, memory_over_time(profile.events, profile.nodes, returned))


def _outputs(model: ir.Model | None) -> list[str]:
    return [] if model is None else [value.name or "" for value in model.graph.outputs]
