"""The profiles and rooflines of the models that ``bench`` compares."""

from __future__ import annotations

from collections.abc import Collection

from graphopt.inputs import run_once
from graphopt.inputs.feeds import InputOptions
from graphopt.timing.alternating_runs import Setup, output_shapes
from graphopt.timing.bench import Bench
from graphopt.timing.kernel_profile import KernelProfile
from graphopt.timing.measure_peaks import peaks_of
from graphopt.timing.roofline import Roofline
from graphopt.util.disk_store import Store


def bench_profiles(
    bench: Bench, inputs: InputOptions, *, besides: Collection[str] = ()
) -> list[KernelProfile]:
    """The profiles of the models of ``bench`` on the same inputs, without the models ``besides``.

    Raises:
        RuntimeFailure: a model does not run.
    """
    first = bench.contestants[0].model
    assert first is not None, "the original is loaded"
    trial = run_once.try_out(first, inputs, device=bench.device, typical=True)
    shapes = output_shapes(list(trial.outputs.values()))
    setup = Setup(trial.feeds, shapes, bench.device, bench.threads, choices=bench.choices)
    return [
        KernelProfile.of(one.name, one.path, one.model, setup)
        for one in bench.contestants
        if one.name not in besides
    ]


def rooflines_of(profiles: Collection[KernelProfile], store: Store, threads: int | None) -> list[Roofline]:
    """The rooflines of ``profiles`` on this machine.

    Raises:
        ResourceLimit: the measured peaks can't be stored.
    """
    found = [one.roofline(peaks_of(store, threads)) for one in profiles]
    if any(one.exceeds_peaks for one in found):
        peaks = peaks_of(store, threads, again=True)
        found = [one.roofline(peaks) for one in profiles]
    return found


def bench_rooflines(
    bench: Bench, inputs: InputOptions, store: Store, *, besides: Collection[str] = ()
) -> list[Roofline]:
    """The rooflines of the models of ``bench`` on the same inputs, without the models ``besides``.

    Raises:
        RuntimeFailure: a model does not run.
        ResourceLimit: the measured peaks can't be stored.
    """
    return rooflines_of(bench_profiles(bench, inputs, besides=besides), store, bench.threads)
