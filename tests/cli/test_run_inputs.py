"""``run --inputs``: an executor on files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import graphopt
from graphopt import api
from graphopt.errors import UsageError
from graphopt.ir.io import interoperability
from tests.cli.conftest import Invoke
from tests.specialization.models import feeds_of, positions


@pytest.fixture
def requests(tmp_path: Path) -> Path:
    api.save(positions(), tmp_path / "m.onnx")
    folder = tmp_path / "requests"
    folder.mkdir()
    for name, sizes in {"a": (1, 8), "b": (2, 5)}.items():
        np.savez(folder / f"{name}.npz", **feeds_of(*sizes))
    return folder


def test_plan_of_each_file_is_reported(invoke: Invoke, requests: Path) -> None:
    told = invoke(
        "run",
        requests.parent / "m.onnx",
        "--inputs",
        requests,
        "--rounds",
        "3",
        "--json",
        "--set",
        "verify=false",
    )
    assert told.status == 0, told.err
    found = json.loads(told.out)
    plans = [row["plan"] for row in found["runs"]]
    assert plans == ["general", "general", "static-1", "static-2", "static-1", "static-2"]
    assert found["depth"] == 10 and found["strategy"] == "static:2,dynamic:10"


def test_the_model_is_loaded_once(invoke: Invoke, requests: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded, load = [], interoperability.load
    monkeypatch.setattr(
        interoperability,
        "load",
        lambda path, *more, **options: loaded.append(path) or load(path, *more, **options),
    )
    arguments = ("--inputs", requests / "a.npz", "--set", "verify=false")
    assert invoke("run", requests.parent / "m.onnx", *arguments).status == 0
    assert loaded == [requests.parent / "m.onnx"]


def test_plan_switches_apply_to_all_runs(invoke: Invoke, requests: Path) -> None:
    arguments = ("run", requests.parent / "m.onnx", "--inputs", requests / "a.npz", "--set", "verify=false")
    told = invoke(*arguments, "--no-optimize", "--rounds", "2")
    assert told.status == 0 and "fallback: 2 runs" in told.out
    told = invoke(*arguments, "--fuser", "none", "--profiled-runs", "0", "--fusion-strategy", "dynamic:1")
    assert told.status == 0 and "dynamic-1: 1 run" in told.out


def test_the_file_at_fault_is_named(invoke: Invoke, requests: Path) -> None:
    np.savez(requests / "c.npz", other=np.zeros(1))
    told = invoke("run", requests.parent / "m.onnx", "--inputs", requests)
    assert told.status == 2 and "c.npz: no input is called 'other'" in told.err
    (requests / "c.npz").write_bytes(b"nothing")
    told = invoke("run", requests.parent / "m.onnx", "--inputs", requests)
    assert told.status == 2 and "c.npz is no numpy file of plain arrays" in told.err
    assert "unsafely" not in told.err


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--rounds", "2"], "--rounds requires --inputs"),
        (["--no-optimize"], "--no-optimize requires --inputs"),
        (["--inputs", "REQUESTS", "--fuser", "fast"], "'fast' is not one of"),
        (["--inputs", "REQUESTS", "-o", "o.npz"], "-o and --inputs exclude each other"),
        (["--inputs", "nowhere"], "no such file or folder"),
    ],
)
def test_conflicting_options_are_reported(
    invoke: Invoke, requests: Path, options: list[str], why: str
) -> None:
    given = [str(requests) if option == "REQUESTS" else option for option in options]
    told = invoke("run", requests.parent / "m.onnx", *given)
    assert told.status == 2 and why in told.err


def test_pipelines_of_the_jit_and_compile_log(invoke: Invoke, requests: Path, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    arguments = (
        "run",
        requests.parent / "m.onnx",
        "--inputs",
        requests,
        "--rounds",
        "2",
        "--set",
        "verify=false",
    )
    told = invoke(*arguments, "--pipelines", "jit", "--compile-log", log, "--json")
    assert told.status == 0, told.err
    found = json.loads(told.out)
    assert [row["plan"] for row in found["runs"]] == ["profiled", "profiled", "static-1", "static-2"]
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert sorted((plan["id"], plan["pipeline"]) for plan in found["plans"]) == [
        (line["id"], line["pipeline"]) for line in lines
    ]
    assert "profiled: 2 runs" in invoke(*arguments, "--set", "pipelines=jit").out
    told = invoke(*arguments, "--compile-log", tmp_path / "missing" / "log.jsonl")
    assert told.status == 2 and "missing" in told.err


@pytest.mark.parametrize("pipelines", ["preset", "jit"])
def test_runs_without_specialization_are_not_ascribed_to_a_plan(
    invoke: Invoke, requests: Path, pipelines: str
) -> None:
    arguments = ("--inputs", requests / "a.npz", "--pipelines", pipelines, "--set", "verify=false")
    outcome = invoke("run", requests.parent / "m.onnx", *arguments)
    assert "  1 run without specialization: profiling" in outcome.out.splitlines(), outcome.out + outcome.err


def test_watch_limit_bounds_the_watched_values(invoke: Invoke, requests: Path) -> None:
    arguments = (
        "run",
        requests.parent / "m.onnx",
        "--inputs",
        requests / "a.npz",
        "--set",
        "verify=false",
        "--json",
    )
    found = json.loads(invoke(*arguments, "--watch", "all", "--watch-limit", "2").out)
    assert found["watched"] == 2 and found["left_out"] > 0
    refused = invoke(*arguments[:-1], "--watch-limit", "2")
    assert refused.status == 2 and "--watch-limit requires --watch" in refused.err


def test_conversions_of_inputs_are_noted_once(invoke: Invoke, requests: Path) -> None:
    for name in "ab":
        arrays = dict(np.load(requests / f"{name}.npz"))
        np.savez(requests / f"{name}.npz", **{key: value.astype(np.int32) for key, value in arrays.items()})
    for command in ("run", "profile"):
        outcome = invoke(command, requests.parent / "m.onnx", "--inputs", requests, "--set", "verify=false")
        assert outcome.status == 0, outcome.err
        assert outcome.err.count("warning: input 'mode' is converted from int32 to int64") == 1


def test_arrays_in_python_are_not_converted() -> None:
    model, feeds = positions(), feeds_of(1, 8)
    other = {**feeds, "mode": feeds["mode"].astype(np.int32)}
    with pytest.raises(UsageError, match="input 'mode' expects int64, the array contains int32"):
        graphopt.compile(model, verify=False).run(other)
    with pytest.raises(UsageError, match="input 'mode' expects int64, the array contains int32"):
        graphopt.record_profile(model, [other])
