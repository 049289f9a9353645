"""Precedence of cost tables: stored, shipped, or a file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from graphopt.cost import select_table, shipped
from graphopt.cost.select_table import costs_for, store_measured_table
from graphopt.errors import UsageError
from graphopt.ort.devices import CPU, Device
from graphopt.ort.gpu_properties import GpuProperties
from graphopt.util.disk_store import Store

MEASURED = replace(shipped("cpu"), name="measured here")


def test_stored_figures_take_precedence_over_shipped_ones(tmp_path: Path) -> None:
    assert costs_for("auto", CPU, tmp_path) == shipped("cpu")
    store_measured_table(Store(tmp_path), CPU, MEASURED)
    assert costs_for("auto", CPU, tmp_path) == MEASURED
    assert costs_for("shipped", CPU, tmp_path) == shipped("cpu")
    assert costs_for("auto", Device("cuda"), tmp_path) == shipped("cuda")


def test_figures_of_a_gpu_are_valid_for_gpus_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda, measured = Device("cuda"), replace(MEASURED, device="cuda")
    gpus = {"first": GpuProperties("First", (9, 0)), "second": GpuProperties("Second", (9, 0))}
    monkeypatch.setattr(select_table, "gpu_properties", lambda device: gpus["first"])
    store_measured_table(Store(tmp_path), cuda, measured)
    assert costs_for("auto", cuda, tmp_path) == measured
    monkeypatch.setattr(select_table, "gpu_properties", lambda device: gpus["second"])
    assert costs_for("auto", cuda, tmp_path) == shipped("cuda")


def test_a_damaged_entry_is_ignored(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store_measured_table(store, CPU, MEASURED)
    (entry,) = store.entries()
    store.put(entry.kind, b"{}", entry.key)
    assert costs_for("auto", CPU, tmp_path) == shipped("cpu")


def test_a_file_applies_to_its_own_device_only(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    path.write_text(json.dumps(MEASURED.to_dict()))
    assert costs_for(str(path), CPU, tmp_path) == MEASURED
    with pytest.raises(UsageError, match="measured on cpu, and the result is for cuda"):
        costs_for(str(path), Device("cuda"), tmp_path)
    with pytest.raises(UsageError, match="can't read"):
        costs_for(str(tmp_path / "none.json"), CPU, tmp_path)
