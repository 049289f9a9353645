"""The log of an executor's compilations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.errors import UsageError
from graphopt.executor.executor_options import ExecutorOptions
from tests.executor.run_hooks import ANY, rows, run_any, with_optimizer
from tests.model_testing import parse


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_compilation_is_a_line(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    options = ExecutorOptions(compile_log=path, strategy="static:2", profiled_runs=2, wait=None)
    executor = graphopt.compile(parse(ANY), options, pipeline="dce,cse")
    run_any(executor, [rows(3), rows(4)])
    with graphopt.optimized_execution(False):
        run_any(executor, [rows(3)], times=1)
    lines = _lines(path)
    assert [(line["id"], line["kind"], line["cause"], line["pipeline"]) for line in lines] == [
        (1, "general", "inputs without a specialization", "dce,cse"),
        (2, "optimized", "2 profiled runs", "dce,cse"),
        (3, "optimized", "2 profiled runs", "dce,cse"),
        (4, "fallback", "optimizing or profiling is off", "fallback"),
    ]
    assert {line["outcome"] for line in lines} == {"ready"}
    assert [line["guard"] for line in lines][1:3] == [
        "x: f32[1, 2, 3]; z: f32[2, 3]",
        "x: f32[1, 2, 4]; z: f32[2, 4]",
    ]
    digests = [line["profile"] for line in lines]
    assert digests[0] is digests[3] is None and digests[1] != digests[2]
    assert [entry["pass"] for entry in lines[0]["passes"]] == ["dce", "cse"]
    for line in lines:
        assert (
            line["seconds"] >= sum(entry["seconds"] for entry in line["passes"]) and line["peak_bytes"] >= 0
        )
    plans = {plan.id: plan for plan in executor.debug_state().plans}
    assert sorted(plans) == [1, 2, 3, 4]
    assert [plans[line["id"]].compile_seconds for line in lines] == [line["seconds"] for line in lines]


def test_failures_are_outcomes(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"

    def refuse(model: object, original: object, guard: object) -> Any:
        if guard is not None:
            raise ValueError("a fault")
        return model

    executor = with_optimizer(refuse, compile_log=path)
    run_any(executor, [rows(3)])
    assert [line["outcome"] for line in _lines(path)][1:] == ["failed: a fault"]


def test_forward_and_backward_models_are_logged(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    options = ExecutorOptions(compile_log=path, wait=None)
    executor = graphopt.compile(parse("g (float[N] x) => (float[N] y) { y = Sin(x) }"), options, verify=False)
    x = np.ones(3, np.float32)
    executor.vjp({"x": x}, ["x"])[1]({"y": x})
    assert [line["id"] for line in _lines(path)] == [1, 2]


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"can't write the compile log .*missing.*: No such file"):
        graphopt.compile(parse(ANY), ExecutorOptions(compile_log=tmp_path / "missing" / "log"))
    with pytest.raises(UsageError, match="compile_log must be a path, not 3"):
        ExecutorOptions(compile_log=3)  # type: ignore[arg-type]
    path = tmp_path / "folder" / "log.jsonl"
    path.parent.mkdir()
    executor = graphopt.compile(parse(ANY), ExecutorOptions(compile_log=path, wait=None), verify=False)
    path.unlink()
    path.parent.rmdir()
    run_any(executor, [rows(3)])
    assert executor.debug_state().remarks == ("the compile log can't be written: No such file or directory",)
