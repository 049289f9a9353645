"""Guarded groups of nodes in the plans of executors: hits, misses and their counts."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import graphopt
from graphopt.executor.executor import Executor
from graphopt.executor.executor_options import ExecutorOptions
from tests.transforms.guarded_models import growing_rows, rows_with, selected_rows


def _executor(**options: Any) -> Executor:
    given = {"strategy": "static:1", "watch": "shapes", "wait": None, **options}
    executor = graphopt.compile(selected_rows(), ExecutorOptions(**given), pipeline="profiling-builtin")
    executor({"x": rows_with(3)})
    return executor


def _run(executor: Executor, positive: int) -> None:
    feeds = {"x": rows_with(positive)}
    found = executor(feeds)
    for name, array in graphopt.run(selected_rows(), feeds).items():
        np.testing.assert_array_equal(found[name], array)


def _counts(executor: Executor) -> dict[str, tuple[int, int]]:
    plans = executor.debug_state().plans
    return {guard.group: (guard.hits, guard.misses) for plan in plans for guard in plan.guards}


def test_hits_and_misses_of_guarded_groups_are_counted() -> None:
    executor = _executor()
    for positive in (3, 2, 6, 0, 3):
        executor({"x": rows_with(positive)})
    assert _counts(executor) == {"psum": (2, 3)}
    state = executor.debug_state()
    assert "  guarded group of psum: 2 hits, 3 misses" in str(state)
    assert json.loads(json.dumps(state.to_dict()))["plans"][0]["guards"] == [
        {"group": "psum", "hits": 2, "misses": 3}
    ]


@pytest.mark.parametrize(
    "steps", [["guard-groups", "lower-fallbacks"], ["guard-groups{pin}", "lower-fallbacks"]]
)
def test_post_passes_guard_groups(steps: list[str]) -> None:
    options = ExecutorOptions(strategy="static:1", watch="shapes", wait=None)
    executor = graphopt.compile(selected_rows(), options, post_passes=steps)
    for positive in (3, 3, 2):
        _run(executor, positive)
    assert _counts(executor) == {"psum": (1, 1)}


def test_the_pipelines_of_the_jit_guard_groups() -> None:
    options = ExecutorOptions(strategy="static:1", watch="shapes", wait=None, pipelines="jit")
    executor = graphopt.compile(selected_rows(), options)
    for positive in (3, 3, 2, 0):
        _run(executor, positive)
    state = executor.debug_state()
    assert [plan.hits for plan in state.plans if plan.kind == "optimized"] == [3]
    assert _counts(executor) == {"psum": (1, 2)}


def test_guarded_groups_return_the_outputs_of_the_original() -> None:
    executor = _executor()
    for positive in (3, 2, 6, 0):
        _run(executor, positive)
    assert set(executor({"x": rows_with(3)})) == {"y", "found"}


def test_each_trip_of_a_loop_is_counted() -> None:
    executor = graphopt.compile(
        growing_rows(),
        ExecutorOptions(strategy="dynamic:1", watch="shapes", wait=None),
        pipeline="profiling-builtin",
    )
    x = rows_with(2)[:3, :2]
    for trips in (2, 2, 4, 0):  # the first run is profiled: the last trip has 4 rows
        found = executor({"x": x, "trips": np.array(trips)})
        np.testing.assert_array_equal(
            found["y"], graphopt.run(growing_rows(), {"x": x, "trips": np.array(trips)})["y"]
        )
    assert _counts(executor) == {"psum": (2, 4)}


def test_bound_runs_are_counted() -> None:
    executor = _executor()
    values = {"x": onnxruntime.OrtValue.ortvalue_from_numpy(rows_with(3))}
    found = executor.run_bound(values)
    assert found.keys() == {"y", "found"} and _counts(executor) == {"psum": (1, 0)}


def test_a_released_executor_counts_guards() -> None:
    executor = _executor(release=True, delay=0.0)
    executor({"x": rows_with(2)})
    limit = time.monotonic() + 10
    while not executor.debug_state().released and time.monotonic() < limit:
        time.sleep(0.02)
    assert executor.debug_state().released
    _run(executor, 3)
    assert [value.name for value in executor.graph_for({"x": rows_with(3)}).graph.outputs] == ["y", "found"]
    assert _counts(executor) == {"psum": (1, 1)}


def test_counts_of_threads_add_up() -> None:
    executor = _executor()

    def run(positive: int) -> None:
        for _ in range(25):
            executor({"x": rows_with(positive)})

    threads = [threading.Thread(target=run, args=(positive,)) for positive in (3, 2, 3, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert _counts(executor) == {"psum": (50, 50)}


def test_plans_without_guarded_groups_count_nothing() -> None:
    executor = graphopt.compile(selected_rows(), ExecutorOptions(strategy="static:1", wait=None))
    executor({"x": rows_with(3)})
    executor({"x": rows_with(3)})
    assert _counts(executor) == {}


def test_misses_of_groups_are_counted_apart_from_misses_of_plans() -> None:
    executor = _executor()
    for positive in (3, 2, 2, 3):
        executor({"x": rows_with(positive)})
    executor({"x": rows_with(3)[:5]})  # no plan for 5 rows
    state = executor.debug_state()
    assert (state.runs, state.misses) == (6, 2)
    assert (state.nested_hits, state.nested_misses) == (2, 2)
    assert "all guarded groups: 2 nested hits, 2 nested misses" in str(state)
    found = state.to_dict()
    assert [found[name] for name in ("misses", "nested_hits", "nested_misses")] == [2, 2, 2]


def test_groups_of_evicted_plans_are_counted() -> None:
    executor = _executor(strategy="static:2", most_plans=1)
    executor({"x": rows_with(2)})
    for _ in range(2):
        executor({"x": rows_with(3)[:5]})
    state = executor.debug_state()
    assert state.evicted == 1 and _counts(executor) == {"psum": (1, 0)}
    assert (state.nested_hits, state.nested_misses) == (1, 1)


def test_plans_have_the_reasons_against_guarding_nodes(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    options = ExecutorOptions(strategy="static:1", watch="shapes", wait=None, compile_log=log)
    steps = ["guard-groups{cost=30}", "lower-fallbacks"]
    executor = graphopt.compile(selected_rows(), options, post_passes=steps, verify=False)
    for _ in range(2):
        executor({"x": rows_with(3)})
    state = executor.debug_state()
    (reason,) = [reason for reason in state.plans[0].not_guarded if reason.endswith("and a guard costs 30")]
    count = state.plans[0].not_guarded[reason]
    assert count > 4 and f"  {count} nodes in no guarded group: {reason}" in str(state)
    assert state.to_dict()["plans"][0]["not_guarded"][reason] == count
    general, specialized = map(json.loads, log.read_text().splitlines())
    assert general["not_guarded"] == {} and specialized["not_guarded"][reason] == count
