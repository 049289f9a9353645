"""Traces of operations in Python: their events, schema and failures."""

from __future__ import annotations

import json
import os
import threading
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

import graphopt
from graphopt import config
from graphopt.diagnostics import record, tracer
from graphopt.diagnostics.events import json_schema
from graphopt.executor.executor_options import ExecutorOptions
from tests.model_testing import parse

_TWO = "g (float[N,4] x) => (float[N,4] y) { a = Identity(x)\n b = Relu(a)\n y = Exp(b) }"
_SCHEMA = jsonschema.Draft202012Validator(json_schema())


def _events(path: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in path.read_text().splitlines()]
    for event in found:
        _SCHEMA.validate(event)
    return found


def _ends(events: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [event for event in events if event["event"] == kind and event["phase"] == "end"]


def test_the_events_of_an_optimization(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    with config.patch(trace=path, cache=False):
        _, report = graphopt.optimize(parse(_TWO), pipeline="dce,peephole")
    events = _events(path)
    assert [(one["name"], one["nodes"]) for one in events if one["event"] == "graph"] == [("g", 3)]
    passes = _ends(events, "pass")
    assert [(one["name"], one["index"], one["nodes"], one["rewrites"]) for one in passes] == [
        ("dce", 1, 3, 0),
        ("peephole", 2, 2, 1),
    ]
    starts = [one for one in events if one["event"] == "pass" and one["phase"] == "start"]
    assert [one["nodes"] for one in starts] == [3, 3]
    (verified,) = _ends(events, "verification")
    assert report.verdict is not None
    assert (verified["equal"], verified["runs"]) == (True, len(report.verdict.rows))
    assert events[0]["event"] == events[-1]["event"] == "operation" and events[0]["name"] == "optimize"
    assert {one["process"] for one in events} == {os.getpid()}
    inner = [one for one in events if one["event"] in ("pass", "verification")]
    assert {type(one["graph"]) for one in inner} == {int} and len({one["graph"] for one in inner}) == 1
    assert [one["time"] for one in events] == sorted(one["time"] for one in events)
    (counters,) = [one["values"] for one in events if one["event"] == "counters"]
    assert counters == report.counters and counters["passes"] == 2 and counters["rewrites"] == 1


def test_starts_and_ends_are_paired(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    with config.patch(trace=path, cache=False):
        graphopt.optimize(parse(_TWO))
    open_: list[str] = []
    for event in _events(path):
        if event["phase"] == "start":
            open_.append(event["event"])
        elif event["phase"] == "end":
            assert open_.pop() == event["event"]
    assert open_ == []


def test_failures_are_named(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    with config.patch(trace=path), pytest.raises(graphopt.errors.UsageError):
        graphopt.optimize(parse(_TWO), strict_fusion=["nothing"])
    (ended,) = _ends(_events(path), "operation")
    assert ended["error"].startswith("UsageError: ")


def test_stored_results(tmp_path: Path) -> None:
    path, model = tmp_path / "t.jsonl", tmp_path / "m.onnx"
    graphopt.save(parse(_TWO), model)
    with config.patch(trace=path, cache=True, cache_dir=tmp_path / "store"):
        graphopt.optimize(model)
        graphopt.optimize(model)
        graphopt.optimize(model, instruments=[graphopt.passes.instrumentation.PassInstrumentation()])
    found = [one for one in _events(path) if one["event"] == "cache"]
    assert [one["outcome"] for one in found] == ["miss", "hit", "bypass"]
    assert found[0]["key"] == found[1]["key"] and found[2]["reason"]


def test_an_executor_traces_compilations_of_other_threads(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    options = ExecutorOptions(compile="background")
    with config.patch(trace=path):
        executor = graphopt.compile(parse(_TWO), options, verify=False)
    for _ in range(2):
        executor({"x": np.ones((3, 4), np.float32)})
    executor.wait()
    events = _events(path)
    assert [one["kind"] for one in _ends(events, "compilation")] == ["general", "optimized"]
    assert {one["outcome"] for one in _ends(events, "compilation")} == {"ready"}
    threads = {one["thread"] for one in events if one["event"] == "compilation"}
    assert len(threads) == 2
    numbers = [one["graph"] for one in _ends(events, "compilation")]
    assert len(set(numbers)) == 2
    assert {one["graph"] for one in _ends(events, "pass")} == set(numbers)
    assert {one["graph"] for one in events if one["event"] == "graph"} == set(numbers)
    assert _ends(events, "session") and _ends(events, "child")


def test_children_are_named(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    with config.patch(trace=path, cache=False):
        graphopt.run(parse(_TWO), {"x": np.ones((3, 4), np.float32)})
    children = _ends(_events(path), "child")
    assert children and all(one["child"] not in (0, os.getpid()) for one in children)


def test_an_unwritable_trace_is_a_warning(tmp_path: Path) -> None:
    unwritable = config.patch(trace=tmp_path / "none" / "t", cache=False)
    with unwritable, pytest.warns(RuntimeWarning, match=r"the trace .*none/t can't be written: No such file"):
        model, _ = graphopt.optimize(parse(_TWO))
    assert len(list(model.graph)) == 2


def test_threads_have_their_own_tracer(tmp_path: Path) -> None:
    found: list[bool] = []
    with tracer.tracing(tracer.Tracer(tmp_path / "t")):
        thread = threading.Thread(target=lambda: found.append(tracer.is_tracing()))
        thread.start()
        thread.join()
        assert tracer.is_tracing()
    assert found == [False] and not tracer.is_tracing()


def test_nothing_is_created_without_a_trace() -> None:
    with tracer.span("child", child=1, function="f"):
        pass
    tracemalloc.start()
    before = tracemalloc.take_snapshot()
    for _ in range(100):
        with tracer.span("child", child=1, function="f") as span:
            span.ends_with(child=2)
        tracer.point("hint")
        record.count("passes")
    after = tracemalloc.take_snapshot()
    tracemalloc.stop()
    grown = Counter(
        {stat.traceback[0].filename: stat.size_diff for stat in after.compare_to(before, "filename")}
    )
    assert grown[tracer.__file__] <= 0 and grown[record.__file__] <= 0


def test_an_empty_variable_means_no_trace() -> None:
    settings = config.load({"GRAPHOPT_TRACE": ""}, file=False)
    assert tracer.Tracer.of(settings) is None
