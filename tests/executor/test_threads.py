"""Concurrent runs and specializations."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from graphopt import api, ir
from graphopt.executor.executor import Executor
from graphopt.executor.executor_options import ExecutorOptions
from graphopt.executor.specialization_job import Job
from graphopt.executor.thread_local_switches import optimized_execution
from graphopt.profile import FusionStrategy, Guard, Profile, SpecializationKind
from tests.executor.run_hooks import ANY, Gate, any_feeds, compiled, rows, run_any, with_optimizer
from tests.model_testing import parse


@pytest.mark.parametrize("mode", ["blocking", "background"])
def test_concurrent_runs_are_correct(mode: str) -> None:
    executor = compiled(parse(ANY), compile=mode, strategy=FusionStrategy.parse("static:2,dynamic:2"))
    wrong: list[object] = []

    def work(seed: int) -> None:
        random = np.random.default_rng(seed)
        for _ in range(60):
            b, c = (int(size) for size in random.integers(1, 6, 2))
            try:
                with optimized_execution(random.random() < 0.9):
                    run_any(executor, [any_feeds((2, b, c), (b, c))], times=1)
            except Exception as error:  # reported by the main thread
                wrong.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    executor.wait()
    assert not wrong
    state = executor.debug_state()
    assert sum(plan.hits for plan in state.plans) == 8 * 60
    assert 1 <= state.compiled <= 4 and not state.failures


def test_background_mode_runs_the_general_plan_meanwhile() -> None:
    gate = Gate()
    executor = with_optimizer(gate, compile="background")
    run_any(executor, [rows(3)], times=2)
    thread = threading.Thread(target=run_any, args=(executor, [rows(3)], 1))
    thread.start()
    thread.join(20)
    state = executor.debug_state()
    assert state.compiling and state.hits("general") == 3
    gate.opened.set()
    executor.wait()
    run_any(executor, [rows(3)], times=1)
    assert executor.debug_state().hits("static-1") == 1


@contextmanager
def _compiling(gate: Gate, executor: Executor) -> Iterator[None]:
    """Within the block, another thread creates a specialization for ``rows(3)`` and waits at the gate."""
    run_any(executor, [rows(3)], times=1)
    thread = threading.Thread(target=executor.run, args=(rows(3),))
    thread.start()
    assert gate.reached.wait(30)
    try:
        yield
    finally:
        gate.opened.set()
        thread.join(30)
    assert not thread.is_alive()


def test_runs_with_a_plan_do_not_wait_for_a_specialization() -> None:
    gate = Gate()
    executor = with_optimizer(gate)
    with _compiling(gate, executor):
        with optimized_execution(False):
            run_any(executor, [rows(3)], times=1)
        run_any(executor, [any_feeds((0, 2, 3), (2, 3))], times=1)
        assert executor.graph_for(rows(3)) is not None
        state = executor.debug_state()
        assert state.compiling and state.hits("general") == 2 and state.hits("fallback") == 1
    assert executor.debug_state().hits("static-1") == 1


def test_runs_wait_for_the_specialization_of_another_thread() -> None:
    gate = Gate()
    executor = with_optimizer(gate)
    with _compiling(gate, executor):
        other = threading.Thread(target=executor.run, args=(rows(3),))
        other.start()
        other.join(0.05)
        assert other.is_alive()
    other.join(30)
    state = executor.debug_state()
    assert state.hits("static-1") == 2 and state.hits("general") == 1 and state.depth == 11


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_waiting_thread_takes_over_an_interrupted_job() -> None:
    gate, executor = Gate(), None
    interrupts = [SystemExit()]

    def optimize(model: ir.Model, original: ir.Model, guard: Guard | None) -> ir.Model:
        found = gate(model, original, guard)
        if guard is not None and interrupts:
            raise interrupts.pop()
        return found

    executor = with_optimizer(optimize)
    with _compiling(gate, executor):
        other = threading.Thread(target=executor.run, args=(rows(3),))
        other.start()
    other.join(30)
    state = executor.debug_state()
    assert state.hits("static-1") == 1 and state.depth == 11 and not state.failures


def test_flush_drops_a_specialization_in_progress() -> None:
    gate = Gate()
    executor = with_optimizer(gate, compile="background")
    run_any(executor, [rows(3)], times=1)
    assert gate.reached.wait(30)
    executor.flush()
    timer = threading.Timer(0.05, gate.opened.set)
    timer.start()
    executor.wait()
    assert gate.passed == 1
    state = executor.debug_state()
    assert state.plans == () and state.depth == 12 and not state.compiling


def test_pass_can_run_the_executor_that_it_compiles_for() -> None:
    found = []

    def optimize(model: ir.Model, original: ir.Model, guard: Guard | None) -> ir.Model:
        if guard is not None:
            found.append(executor.run(rows(3)))
        return model

    executor = with_optimizer(optimize)
    run_any(executor, [rows(3)], times=2)
    state = executor.debug_state()
    assert len(found) == 1 and state.hits("general") == 2 and state.hits("static-1") == 1


@pytest.mark.parametrize("depth", [0, 1])
def test_unprofiled_runs_take_the_counter_lock_only(depth: int) -> None:
    executor = compiled(parse(ANY), depth=depth, strategy=FusionStrategy.parse("static:1"))
    run_any(executor, [rows(3)], times=2)
    thread = threading.Thread(target=run_any, args=(executor, [rows(3), rows(4)], 1), daemon=True)
    with executor._specializer._state, executor._specializer.cache._general_lock:
        thread.start()
        thread.join(30)
        assert not thread.is_alive()


def test_failure_to_start_a_thread_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("can't start new thread")

    executor = compiled(parse(ANY), compile="background")
    with monkeypatch.context() as patched:
        patched.setattr("graphopt.process.threads._thread.start_new_thread", fail)
        run_any(executor, [rows(3)], times=2)
    state = executor.debug_state()
    assert state.failures == ("no thread could be started: can't start new thread",) and not state.compiling


def test_wait_option_limits_the_wait() -> None:
    gate = Gate()
    executor = with_optimizer(gate, wait=0.0)
    run_any(executor, [rows(3)], times=4)
    state = executor.debug_state()
    assert state.compiling and state.hits("general") == 4
    assert state.reasons["a specialization is being made"] == 3
    gate.opened.set()
    executor.wait()
    run_any(executor, [rows(3)], times=1)
    assert gate.passed == 1 and executor.debug_state().hits("static-1") == 1


def test_fork_does_not_wait_for_a_thread_of_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    executor = with_optimizer(gate)
    with _compiling(gate, executor), monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: -1)  # as in a fork
        run_any(executor, [rows(3)], times=2)
        executor.wait()
        assert executor.debug_state().hits("general") == 3
    executor.wait()


def test_wait_limit_counts_from_the_start_of_the_specialization() -> None:
    gate = Gate()
    executor = with_optimizer(gate, wait=0.2)
    run_any(executor, [rows(3)], times=2)
    job = executor._specializer._job
    assert job is not None and job.wait(None if job.done.is_set() else 0.2) is False
    run_any(executor, [rows(3)], times=50)  # 50 waits of 0.2 s would be 10 s
    assert time.monotonic() - job.begun < 50 * 0.2
    gate.opened.set()
    executor.wait()


def test_pass_can_run_the_executor_while_another_thread_waits() -> None:
    found = []

    def optimize(model: ir.Model, original: ir.Model, guard: Guard | None) -> ir.Model:
        if guard is not None:
            found.append(executor.run(rows(3)))
        return model

    executor = with_optimizer(optimize, wait=60.0)
    run_any(executor, [rows(3)], times=2)
    state = executor.debug_state()
    assert len(found) == 1 and state.hits("general") == 2 and state.hits("static-1") == 1


def test_run_uses_the_plan_that_another_thread_made_since_its_guards_were_checked() -> None:
    executor = compiled(parse(ANY), profiled_runs=0)
    specializer = executor._specializer
    assert specializer.known_plan(rows(3)) is None
    thread = threading.Thread(target=executor.run, args=(rows(3),))
    thread.start()
    thread.join(60)
    assert specializer._plan_without_guard(rows(3)) is specializer.known_plan(rows(3))
    assert executor.debug_state().compiled == 1


def test_thread_that_made_a_plan_waits_for_the_next_job_of_another_thread() -> None:
    executor = compiled(parse(ANY), profiled_runs=0)
    run_any(executor, [rows(3)], times=1)
    thread = threading.Thread(target=executor._specializer._plan_or_job, args=(rows(4),))
    thread.start()
    thread.join(60)
    assert isinstance(executor._specializer._plan_or_job(rows(4)), Job)


def test_waiting_runs_go_on_if_the_release_can_not_be_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = api.compile(parse(ANY), ExecutorOptions(release=True), pipeline="O1", verify=False)
    specializer = executor._specializer
    job = Job(parse(ANY), Profile(""), SpecializationKind.STATIC, specializer._create, specializer._finish)

    def fail() -> None:
        raise MemoryError

    monkeypatch.setattr(specializer, "_release_later", fail)
    with pytest.raises(MemoryError):
        job.finish(job, None, "failed")
    assert job.wait(0)
