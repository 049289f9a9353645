"""graphopt calibrate: figures are measured, stored, shown, and used by optimize."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from graphopt.cli.options import resolve_options
from graphopt.cost import Costs, calibrate, shipped
from graphopt.cost.cost_model import read
from graphopt.ort import devices
from graphopt.ort.devices import CPU, Device
from tests.cli.conftest import Invoke

MEASURED = Costs("figures made up", "cpu", "nowhere", shipped("cpu").grids, passes=5)


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def fake(device: Device, **options: object) -> Costs:
        assert device == CPU
        return MEASURED

    monkeypatch.setattr(calibrate, "calibrate", fake)


@pytest.mark.usefixtures("made_up")
def test_measurements_are_stored_and_printed(invoke: Invoke, tmp_path: Path) -> None:
    auto = ("--set", "costs=auto", "--device", "cpu")
    before = invoke("calibrate", "--show", *auto)
    assert shipped("cpu").name in before.out
    measured = invoke("calibrate", "-o", tmp_path / "costs.json", *auto)
    assert measured.status == 0
    assert "figures made up" in measured.out and "optimize uses these figures" in measured.out
    assert read(tmp_path / "costs.json") == MEASURED
    after = invoke("calibrate", "--show", "--json", *auto)
    assert Costs.from_dict(json.loads(after.out)) == MEASURED


@pytest.mark.usefixtures("made_up")
def test_no_store_prints_without_storing(invoke: Invoke) -> None:
    auto = ("--set", "costs=auto", "--device", "cpu")
    assert "not stored" in invoke("calibrate", "--no-store", *auto).out
    assert shipped("cpu").name in invoke("calibrate", "--show", *auto).out


def test_rough_figures_replace_shipped_ones_only_on_request(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    rough = replace(MEASURED, passes=1)
    monkeypatch.setattr(calibrate, "calibrate", lambda device, **options: rough)
    auto = ("--set", "costs=auto", "--device", "cpu")
    assert "not stored: after 1 pass, gain and noise" in invoke("calibrate", "--budget", "1s", *auto).out
    assert shipped("cpu").name in invoke("calibrate", "--show", *auto).out
    assert "optimize uses these figures" in invoke("calibrate", "--budget", "1s", "--store", *auto).out
    assert rough.name in invoke("calibrate", "--show", *auto).out


@pytest.mark.usefixtures("made_up")
def test_stored_figures_can_be_removed_and_doctor_names_those_in_force(invoke: Invoke) -> None:
    auto = ("--set", "costs=auto", "--set", "device=cpu")
    assert "nothing was stored" in invoke("calibrate", "--forget", *auto).out
    invoke("calibrate", *auto)
    assert "figures made up (nowhere)" in invoke("doctor", *auto).out
    assert "removed figures made up" in invoke("calibrate", "--forget", *auto).out
    assert shipped("cpu").name in json.loads(invoke("doctor", "--json", *auto).out)["costs"]
    assert invoke("calibrate", "--forget", "--show", *auto).status == 2


def test_doctor_reports_the_rest_after_an_unreadable_table(invoke: Invoke) -> None:
    assert "not usable: can't read missing.json" in invoke("doctor", "--set", "costs=missing.json").out


def test_assumed_figures_are_marked(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolve_options, "chosen_device", lambda run: Device("cuda"))
    shown = invoke("calibrate", "--show", "--set", "costs=shipped").out
    assert "assumptions for CUDA (not measured)\n" in shown
    assert "MultiHeadAttention" in shown


def test_figures_of_an_absent_device_are_shown(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "probe_cuda", lambda index=0: devices.CudaStatus(False, "no driver"))
    shown = invoke("calibrate", "--show", "--device", "cuda", "--set", "costs=shipped")
    assert shown.status == 0 and "assumptions for CUDA (not measured)\n" in shown.out
    assert invoke("calibrate", "--forget", "--device", "cuda").status == 6


def test_verbose_prints_every_figure(invoke: Invoke) -> None:
    shown = invoke("calibrate", "--show", "-v", "--device", "cpu")
    assert shown.out.count("\n") > sum(len(grid.ratios) for grid in shipped("cpu").grids)
