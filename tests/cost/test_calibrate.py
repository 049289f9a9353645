"""Cost tables from artificial measurements, and equal results of all operators of a subject."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest

from graphopt.cost import Axis, select_table
from graphopt.cost.calibrate import TWIN, GridPoint, HarnessStopwatch, calibrate
from graphopt.cost.calibration_models import (
    SUBJECTS,
    UNFUSED,
    CompetingModels,
    Subject,
    cuda_operators,
    in_half,
    subjects_for,
)
from graphopt.cost.cost_model import choices
from graphopt.errors import RuntimeFailure
from graphopt.ort import session
from graphopt.ort.devices import CPU, Device
from graphopt.ort.gpu_properties import GpuProperties
from graphopt.timing.ratios import LEAST_PROCESSES


def no_models(**sizes: int) -> CompetingModels:
    raise AssertionError("the made-up stopwatch needs none")


NORM = Subject("norm", "", (Axis("rows", (1, 8), 8),), no_models)


class Readings:
    """A stopwatch with a clock: each site takes ten seconds, and readings are given for each pass."""

    def __init__(self, *passes: list[dict[str, float]]) -> None:
        self.passes = passes
        self.now = 0.0
        self.indices: list[int] = []

    def __call__(self, points: Sequence[GridPoint], index: int) -> Iterator[dict[str, float]]:
        self.indices.append(index)
        for reading in self.passes[min(index, len(self.passes) - 1)]:
            self.now += 10
            yield reading

    def clock(self) -> float:
        return self.now


def steady(ratio: float, twin: float = 1.0) -> Readings:
    return Readings([{"Fused": ratio, TWIN: twin}] * 2)


def test_budget_limits_the_number_of_passes() -> None:
    for budget, passes in ((1, 1), (39, 1), (40, 2), (100, 5)):
        readings = steady(0.5)
        costs = calibrate(CPU, budget=budget, subjects=[NORM], stopwatch=readings, clock=readings.clock)
        assert readings.indices == list(range(passes)), budget
        assert f"{passes} pass" in costs.where


def test_figures_of_a_gpu_name_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = GpuProperties("NVIDIA H200", (9, 0))
    monkeypatch.setattr(select_table, "gpu_properties", lambda device: gpu)
    readings = steady(0.5)
    costs = calibrate(
        Device("cuda"), budget=1, subjects=[NORM], stopwatch=readings, clock=readings.clock, threads=4
    )
    assert costs.device == "cuda" and not costs.assumed
    assert costs.where.startswith("NVIDIA H200 (compute capability 9.0), onnxruntime ")
    assert costs.where.endswith(", 1 pass")


def test_default_number_of_passes_suffices_to_measure_noise() -> None:
    readings = steady(0.5)
    told: list[tuple[str, float]] = []
    costs = calibrate(
        CPU,
        subjects=[NORM],
        stopwatch=readings,
        clock=readings.clock,
        progress=lambda text, done: told.append((text, done)),
    )
    assert costs.passes == LEAST_PROCESSES and not costs.rough
    assert told[0] == ("pass 1 of 5, about 90.0 s left: norm, rows 1", 0.1)
    assert told[-1][1] == 1.0
    readings = steady(0.5)
    assert calibrate(CPU, budget=1, subjects=[NORM], stopwatch=readings, clock=readings.clock).rough


def test_a_figure_is_the_median_of_the_passes() -> None:
    passes = [[{"Fused": ratio, TWIN: 1.0}, {"Fused": 0.5, TWIN: 1.0}] for ratio in (0.7, 0.9, 0.6)]
    readings = Readings(*passes)
    costs = calibrate(CPU, budget=60, subjects=[NORM], stopwatch=readings, clock=readings.clock)
    assert costs.weigh("Fused", rows=1).ratio == pytest.approx(0.7)
    assert costs.weigh("Fused", rows=8).ratio == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("ratio", "twin", "pays"),
    [
        (0.9, 1.0, True),
        (0.9, 1.2, False),  # as much as the nodes differ from themselves
        (0.9, 0.8, False),
        (0.99, 1.0, False),  # hardly anything
        (1.1, 1.0, False),
    ],
)
def test_only_gains_beyond_noise_pay(ratio: float, twin: float, pays: bool) -> None:
    readings = steady(ratio, twin)
    costs = calibrate(CPU, budget=200, subjects=[NORM], stopwatch=readings, clock=readings.clock)
    assert bool(costs.weigh("Fused", rows=1)) is pays


def test_operators_on_which_passes_disagree_do_not_pay() -> None:
    passes = [[{"Fused": ratio, TWIN: 1.0}] * 2 for ratio in (0.5, 1.4, 0.6)]
    readings = Readings(*passes)
    costs = calibrate(CPU, budget=60, subjects=[NORM], stopwatch=readings, clock=readings.clock)
    assert not costs.weigh("Fused", rows=1)


def test_few_passes_use_the_noise_of_other_sites() -> None:
    readings = Readings([{"Fused": 0.8, TWIN: 1.0}, {"Fused": 0.8, TWIN: 1.5}])
    few = calibrate(CPU, budget=20, subjects=[NORM], stopwatch=readings, clock=readings.clock)
    assert not few.weigh("Fused", rows=1)
    readings.now = 0
    many = calibrate(CPU, budget=100, subjects=[NORM], stopwatch=readings, clock=readings.clock)
    assert many.weigh("Fused", rows=1)


def test_operators_that_do_not_run_are_skipped() -> None:
    readings = Readings([{"Fused": 0.5, "Other": 0.5, TWIN: 1.0}, {"Fused": 0.5, TWIN: 1.0}])
    costs = calibrate(CPU, budget=1, subjects=[NORM], stopwatch=readings, clock=readings.clock)
    assert [grid.op for grid in costs.grids] == ["Fused"]
    nothing = Readings([{}, {}])
    with pytest.raises(RuntimeFailure, match="nothing could be measured on CPU"):
        calibrate(CPU, budget=1, subjects=[NORM], stopwatch=nothing, clock=nothing.clock)


def test_the_same_measurements_give_the_same_table() -> None:
    first, second = (
        calibrate(CPU, budget=60, subjects=[NORM], stopwatch=readings, clock=readings.clock)
        for readings in (steady(0.7), steady(0.7))
    )
    assert first == second


def test_small_site_is_measured() -> None:
    small = next(subject for subject in SUBJECTS if subject.name == "GELU" and subject.case == "tanh")
    subject = replace(small, axes=(Axis("rows", (1,), 1),))
    costs = calibrate(CPU, budget=0.01, subjects=[subject])
    assert [(grid.op, grid.case) for grid in costs.grids] == [("Gelu", "tanh"), ("FastGelu", "tanh")]
    assert all(0 < grid.ratios[0] < 100 for grid in costs.grids)


def test_an_operator_without_kernel_does_not_affect_others() -> None:
    def make(rows: int) -> CompetingModels:
        (gelu,) = (subject for subject in SUBJECTS if (subject.name, subject.case) == ("GELU", "quick"))
        competition = gelu.make(rows=rows)
        broken = competition.models["QuickGelu"].replace(b"QuickGelu", b"QuackGelu")
        return replace(competition, models=competition.models | {"QuackGelu": broken})

    point = GridPoint(replace(NORM, make=make), {"rows": 1})
    (found,) = HarnessStopwatch(CPU, threads=1)([point], 0)
    assert set(found) == {"QuickGelu", TWIN}


@pytest.mark.parametrize("subject", SUBJECTS, ids=str)
def test_fused_operators_compute_the_same_as_the_replaced_nodes(subject: Subject) -> None:
    sizes = list(choices(subject.axes))[1]
    competition = subject.make(**sizes)
    assert next(iter(competition.models)) == UNFUSED and len(competition.models) > 1
    outputs = {name: _run(model, competition) for name, model in competition.models.items()}
    for name, arrays in outputs.items():
        for array, wanted in zip(arrays, outputs[UNFUSED], strict=True):
            np.testing.assert_allclose(array, wanted, rtol=1e-3, atol=1e-3, err_msg=name)


def _run(model: bytes, competition: CompetingModels) -> list[np.ndarray]:
    made = session.create(model, optimizations="off", threads=1)
    return made.run(None, {argument.name: competition.feeds[argument.name] for argument in made.get_inputs()})


@pytest.mark.parametrize("subject", in_half(SUBJECTS[:13]), ids=str)
def test_subjects_in_half_compute_the_same_within_their_precision(subject: Subject) -> None:
    competition = subject.make(**next(choices(subject.axes)))
    assert {array.dtype for array in competition.feeds.values()} <= {np.dtype(np.float16), np.dtype(np.int32)}
    outputs = {name: _run(model, competition) for name, model in competition.models.items()}
    for name, arrays in outputs.items():
        for array, wanted in zip(arrays, outputs[UNFUSED], strict=True):
            assert array.dtype == np.float16
            np.testing.assert_allclose(array, wanted, rtol=2e-2, atol=2e-2, err_msg=name)


@pytest.mark.parametrize("subject", cuda_operators.SUBJECTS, ids=str)
def test_operators_of_cuda_are_defined_and_lack_kernels_on_the_cpu(subject: Subject) -> None:
    competition = subject.make(**next(choices(subject.axes)))
    for kind in (competition, in_half([subject])[0].make(**next(choices(subject.axes)))):
        assert session.create(kind.models[UNFUSED])
        (name,) = set(kind.models) - {UNFUSED}
        with pytest.raises(RuntimeFailure, match=f"(implementation|kernel) for .*{name}"):
            session.create(kind.models[name])


@pytest.mark.parametrize("device", [CPU, Device("cuda")], ids=str)
def test_each_operator_has_one_grid_for_each_case_and_type(device: Device) -> None:
    keys = [
        (name, subject.case, subject.dtype)
        for subject in subjects_for(device)
        for name in subject.make(**next(choices(subject.axes))).models
        if name != UNFUSED
    ]
    assert len(keys) == len(set(keys))
