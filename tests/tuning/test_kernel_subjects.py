"""Kernels of single nodes compute the same as the nodes, and the shipped figures predict which is faster."""

from __future__ import annotations

import numpy as np
import pytest

from graphopt.cost import shipped
from graphopt.cost.calibrate import GridPoint, HarnessStopwatch
from graphopt.cost.calibration_models import UNFUSED, CompetingModels, Subject
from graphopt.fusion.backends.c import BACKEND
from graphopt.fusion.group_functions import kernels_of
from graphopt.fusion.single_nodes import LEAST_GAIN, kernel_name
from graphopt.ort import session
from graphopt.ort.devices import CPU
from graphopt.tuning.kernel_subjects import SINGLE_NODES, SingleNode, grouped, kernel_subjects
from graphopt.util.disk_store import Store

#: Number of elements at which figures are compared with a race.
ELEMENTS = 262_144
#: Maximum predicted ratio for which the kernel must win a race, also on machines without their own figures.
CLEAR = 0.6


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str, str], Subject]:
    """The subjects by operator, case and type; their kernels are in one library."""
    found = kernel_subjects(BACKEND, Store(tmp_path_factory.mktemp("store")))
    return {(subject.name, subject.case, subject.dtype): subject for subject in found}


def key(node: SingleNode) -> tuple[str, str, str]:
    return node.op, node.case, node.dtype


def label(node: SingleNode) -> str:
    return "-".join(filter(None, key(node)))


def test_operators_cases_and_types_differ_and_have_shipped_figures() -> None:
    keys = [(kernel_name(node.op), node.case, node.dtype) for node in SINGLE_NODES]
    assert len(keys) == len(set(keys))
    grids = {(grid.op, grid.case, grid.dtype) for grid in shipped("cpu").grids}
    assert {entry for entry in grids if entry[0].endswith(" kernel")} == set(keys)


@pytest.mark.parametrize("node", SINGLE_NODES, ids=label)
def test_each_operator_has_one_kernel(node: SingleNode) -> None:
    assert len(kernels_of(grouped(node))) == 1


@pytest.mark.parametrize("node", SINGLE_NODES, ids=label)
def test_kernels_compute_the_same_as_the_node(
    node: SingleNode, subjects: dict[tuple[str, str, str], Subject]
) -> None:
    competition = subjects[key(node)].make(elements=1024)
    name = kernel_name(node.op)
    assert list(competition.models) == [UNFUSED, name]
    wanted, actual = (_run(competition, model) for model in (UNFUSED, name))
    np.testing.assert_allclose(actual, wanted, rtol=1e-5, atol=1e-5)
    assert any(array.size == 1024 for array in competition.feeds.values())


def _run(competition: CompetingModels, name: str) -> np.ndarray:
    made = session.create(competition.models[name], threads=1, choice=competition.choices.get(name))
    (found,) = made.run(None, competition.feeds)
    return np.asarray(found)


def test_a_clear_gain_in_the_shipped_figures_is_a_gain_in_a_race(
    subjects: dict[tuple[str, str, str], Subject],
) -> None:
    predicted = {}
    for grid in shipped("cpu").grids:
        name = grid.op.removesuffix(" kernel")
        if (name, grid.case, grid.dtype) in subjects:
            predicted[name, grid.case, grid.dtype] = grid.at({"elements": ELEMENTS}).ratio
    clear = [entry for entry, ratio in predicted.items() if ratio <= CLEAR < LEAST_GAIN]
    assert len(clear) >= 10
    points = [GridPoint(subjects[entry], {"elements": ELEMENTS}) for entry in clear]
    races = list(HarnessStopwatch(CPU, threads=1)(points, 0))
    lost = {entry: race for entry, race in zip(clear, races, strict=True) if race[kernel_name(entry[0])] >= 1}
    assert not lost
