"""graphopt calibrate: figures are measured, stored, shown, and used by optimize."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from graphopt.cost import Costs, calibrate, shipped
from graphopt.cost.table import read
from graphopt.runtime.devices import CPU, Device
from tests.cli.conftest import Invoke

MEASURED = Costs("figures made up", "cpu", "nowhere", shipped("cpu").grids)


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def fake(device: Device, **options: object) -> Costs:
        assert device == CPU
        return MEASURED

    monkeypatch.setattr(calibrate, "calibrate", fake)


@pytest.mark.usefixtures("made_up")
def test_what_is_measured_is_stored_and_shown(invoke: Invoke, tmp_path: Path) -> None:
    auto = ("--set", "costs=auto", "--device", "cpu")
    before = invoke("calibrate", "--show", *auto)
    assert shipped("cpu").name in before.out
    measured = invoke("calibrate", "-o", tmp_path / "costs.json", *auto)
    assert measured.status == 0
    assert "figures made up" in measured.out and "optimize uses them" in measured.out
    assert read(tmp_path / "costs.json") == MEASURED
    after = invoke("calibrate", "--show", "--json", *auto)
    assert Costs.from_dict(json.loads(after.out)) == MEASURED


@pytest.mark.usefixtures("made_up")
def test_nothing_is_stored_if_that_is_not_wanted(invoke: Invoke) -> None:
    auto = ("--set", "costs=auto", "--device", "cpu")
    assert "not stored" in invoke("calibrate", "--no-store", *auto).out
    assert shipped("cpu").name in invoke("calibrate", "--show", *auto).out


def test_with_v_every_figure_is_shown(invoke: Invoke) -> None:
    shown = invoke("calibrate", "--show", "-v", "--device", "cpu")
    assert shown.out.count("\n") > sum(len(grid.ratios) for grid in shipped("cpu").grids)
