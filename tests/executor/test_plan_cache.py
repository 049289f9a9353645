"""Releasing the original, and flushing an executor."""

from __future__ import annotations

import gc
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphopt import api, ir
from graphopt.errors import UsageError
from graphopt.executor.executor import Executor
from graphopt.executor.executor_options import ExecutorOptions
from graphopt.executor.thread_local_switches import optimized_execution
from graphopt.profile import Guard
from tests.executor.run_hooks import ANY, Clock, Gate, Interrupted, any_feeds, rows, run_any, with_optimizer
from tests.model_testing import parse


def _releasing(model: ir.Model | Path, clock: Clock, **options: Any) -> Executor:
    settings = ExecutorOptions(release=True, **{"wait": None, **options})
    return api.compile(model, settings, pipeline="O2", verify=False, clock=clock)


def test_original_is_released_on_the_first_run_after_the_delay(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    api.save(parse(ANY), path)
    clock = Clock()
    executor = _releasing(path, clock)
    feeds = any_feeds((1, 2, 3), (2, 3))
    run_any(executor, [feeds], times=2)
    clock.now = 60.0
    run_any(executor, [feeds], times=1)
    assert not executor.debug_state().released
    clock.now = 60.1
    assert not executor.debug_state().released
    run_any(executor, [feeds], times=1)
    assert executor.debug_state().released
    run_any(executor, [any_feeds((1, 2, 4), (2, 4))])
    state = executor.debug_state()
    assert state.compiled == 1 and any("was released" in why for why in state.reasons)
    executor.flush()
    run_any(executor, [feeds])
    assert executor.debug_state().compiled == 1 and not executor.debug_state().released


def test_released_model_without_file_can_not_be_flushed() -> None:
    clock = Clock()
    executor = _releasing(parse(ANY), clock)
    feeds = any_feeds((1, 2, 3), (2, 3))
    run_any(executor, [feeds], times=2)
    clock.now = 61
    run_any(executor, [feeds], times=1)
    with pytest.raises(UsageError, match="has no file"):
        executor.flush()
    run_any(executor, [feeds, any_feeds((2, 2, 2), (2, 2))])


def test_original_is_released_immediately_with_zero_profiled_runs() -> None:
    executor = _releasing(parse(ANY), Clock(), profiled_runs=0)
    run_any(executor, [any_feeds((1, 2, 3), (2, 3))], times=1)
    state = executor.debug_state()
    assert state.released and state.hits("static-1") == 1 and state.hits("general") == 0


def test_general_plan_serves_new_inputs_after_a_release() -> None:
    executor = _releasing(parse(ANY), Clock(), profiled_runs=0)
    run_any(executor, [any_feeds((1, 2, 3), (2, 3)), any_feeds((2, 2, 3), (2, 3))])
    with optimized_execution(False):
        run_any(executor, [any_feeds((1, 2, 3), (2, 3))])
    assert executor.debug_state().released


def test_flush_reads_the_file_again(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    api.save(parse(ANY), path)
    clock = Clock()
    executor = _releasing(path, clock)
    run_any(executor, [any_feeds((1, 2, 3), (2, 3))], times=2)
    clock.now = 61
    run_any(executor, [any_feeds((1, 2, 3), (2, 3))], times=1)
    api.save(parse("g (float[N] u) => (float[N] v) { v = Neg(u) }"), path)
    executor.flush()
    assert executor.run({"u": np.ones(2, np.float32)})["v"].tolist() == [-1, -1]


def _released(path: Path, clock: Clock, **options: Any) -> Executor:
    """An executor that released its original, and has the plan static-1 for ``rows(3)``."""
    api.save(parse(ANY), path)
    executor = _releasing(path, clock, **options)
    run_any(executor, [rows(3)], times=2)
    clock.now += 61
    run_any(executor, [rows(3)], times=1)
    assert executor.debug_state().released
    return executor


def test_release_frees_original_and_fallback_plan() -> None:
    clock = Clock()
    executor = _releasing(parse(ANY), clock)
    run_any(executor, [rows(3)], times=2)
    run_any(executor, [rows(4)], times=1)
    with optimized_execution(False):
        run_any(executor, [rows(3)], times=1)
    state = executor.debug_state()
    assert state.profiled == 1 and [plan.name for plan in state.plans] == ["static-1", "general", "fallback"]
    clock.now = 61
    run_any(executor, [rows(3)], times=1)
    state = executor.debug_state()
    assert state.profiled == 0 and [plan.name for plan in state.plans] == ["static-1", "general"]


def test_fallback_plan_reads_a_released_model_once(tmp_path: Path) -> None:
    executor = _released(tmp_path / "m.onnx", Clock())
    with optimized_execution(False):
        run_any(executor, [rows(3)], times=1)
        (tmp_path / "m.onnx").unlink()
        run_any(executor, [rows(3)], times=2)
    state = executor.debug_state()
    assert state.hits("fallback") == 3 and state.released


def test_relative_paths_are_resolved_on_creation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    executor = _released(Path("m.onnx"), Clock())
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    executor.flush()
    run_any(executor, [rows(3)])


def test_original_is_released_after_the_general_plan_with_depth_zero() -> None:
    clock = Clock()
    executor = _releasing(parse(ANY), clock, depth=0)
    clock.now = 100
    run_any(executor, [rows(3)], times=1)
    clock.now = 160
    run_any(executor, [rows(3)], times=1)
    assert not executor.debug_state().released
    clock.now = 161
    run_any(executor, [rows(3)], times=2)
    state = executor.debug_state()
    assert state.released and state.hits("general") == 4


def test_original_is_not_released_before_a_specialization() -> None:
    clock = Clock()
    executor = _releasing(parse(ANY), clock)
    run_any(executor, [rows(3)], times=1)
    clock.now = 100
    run_any(executor, [any_feeds((0, 2, 3), (2, 3))], times=1)
    assert not executor.debug_state().released


def test_failed_release_is_postponed_and_does_not_affect_runs() -> None:
    faults: list[Exception] = [ValueError("a fault of a pass"), UsageError("no")]

    def general_fails(model: ir.Model, original: ir.Model, guard: Guard | None) -> ir.Model:
        if guard is None and faults:
            raise faults.pop()
        return model

    clock = Clock()
    executor = with_optimizer(general_fails, clock, release=True, profiled_runs=0)
    run_any(executor, [rows(3)], times=2)  # it would be released immediately
    assert executor.debug_state().kept == "no" and len(faults) == 1
    clock.now = 61
    run_any(executor, [rows(3)], times=2)
    state = executor.debug_state()
    assert state.kept == "a fault of a pass" and not state.released and not faults
    assert "could not be released: a fault of a pass" in str(state)
    clock.now = 122
    run_any(executor, [rows(3)], times=1)
    state = executor.debug_state()
    assert state.released and state.kept is None and state.hits("static-1") == 5


def test_original_is_not_released_during_a_specialization() -> None:
    clock, gate = Clock(), Gate()
    executor = with_optimizer(gate, clock, release=True, compile="background")
    gate.opened.set()
    run_any(executor, [rows(3)], times=1)
    executor.wait()
    gate.opened.clear()
    run_any(executor, [rows(4)], times=1)
    clock.now = 61
    run_any(executor, [rows(3), rows(4)], times=1)
    assert executor.debug_state().compiling and not executor.debug_state().released
    gate.opened.set()
    executor.wait()
    run_any(executor, [rows(4)], times=1)
    assert executor.debug_state().hits("static-2") == 1 and not executor.debug_state().released
    clock.now = 122
    run_any(executor, [rows(4)], times=1)
    assert executor.debug_state().released


def test_flush_does_not_affect_a_concurrent_run(tmp_path: Path) -> None:
    executor = _released(tmp_path / "m.onnx", Clock())

    def change() -> None:
        api.save(parse("g (float[N] u) => (float[N] other) { other = Neg(u) }"), tmp_path / "m.onnx")
        executor.flush()

    run_any(executor, [Interrupted(rows(3), change)], times=1)
    state = executor.debug_state()
    assert not state.released and state.plans == () and state.profiled == 0 and executor.last_plan is None
    assert executor.run({"u": np.ones(2, np.float32)})["other"].tolist() == [-1, -1]


def test_failed_flush_keeps_the_state(tmp_path: Path) -> None:
    path, clock = tmp_path / "m.onnx", Clock()
    api.save(parse(ANY), path)
    options = ExecutorOptions(release=True, wait=None)
    executor = api.compile(path, options, outputs=["y"], pipeline="O2", verify=False, clock=clock)
    run_any(executor, [rows(3)], times=2)
    clock.now = 61
    run_any(executor, [rows(3)], times=1)
    api.save(parse("g (float[N] u) => (float[N] other) { other = Neg(u) }"), path)
    with pytest.raises(UsageError, match="no output is called 'y'"):
        executor.flush()
    [found] = executor(rows(3))
    assert found.shape == (1, 2, 3) and executor.debug_state().hits("static-1") == 3


def test_specializer_flushed_during_compilation_is_freed() -> None:
    go = threading.Event()

    def slow(model: ir.Model, original: ir.Model, guard: Guard | None) -> ir.Model:
        assert guard is None or go.wait(30)
        return model

    executor = with_optimizer(slow, compile="background")
    run_any(executor, [rows(3)])
    old = weakref.ref(executor._specializer)
    executor.flush()
    go.set()
    executor.wait()
    run_any(executor, [rows(3)])
    gc.collect()
    assert old() is None
