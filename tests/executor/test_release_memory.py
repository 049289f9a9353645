"""The memory that a release frees, and the models of plans after it."""

from __future__ import annotations

import gc
import shutil
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphopt import api, ir, publish
from graphopt.errors import UsageError
from graphopt.executor.executor import Executor
from graphopt.executor.executor_options import ExecutorOptions
from graphopt.executor.kept_model import KeptModel, store_together
from graphopt.executor.release_timer import ReleaseTimer
from graphopt.executor.thread_local_switches import last_executed_optimized_graph
from graphopt.model_arguments import copy
from graphopt.ort import loadable_model
from tests.executor.run_hooks import ANY, Clock, any_feeds, rows, run_any
from tests.model_testing import parse

#: Twelve products with weights of 4 MiB: about 50 MB.
_FREED = """
    import os
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper, save
    import graphopt
    from graphopt.executor.executor_options import ExecutorOptions

    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    random, side, number = np.random.default_rng(0), 1024, 12
    weights = [
        numpy_helper.from_array(random.random((side, side), np.float32) / side, f"w{i}") for i in range(number)
    ]
    nodes = [helper.make_node("MatMul", [f"h{i}", f"w{i}"], [f"h{i + 1}"]) for i in range(number)]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", side]) for name in ("h0", f"h{number}")]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], weights)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "m.onnx")
    del weights, graph
    total, now = number * 4 * side**2, 0.0

    options = ExecutorOptions(strategy="static:1", release=True, wait=None, delay=600.0)
    executor = graphopt.compile("m.onnx", options, pipeline="O1", verify=False, clock=lambda: now)
    feeds = {"h0": np.ones((2, side), np.float32)}
    for _ in range(3):
        expected = executor.run(feeds)[f"h{number}"]
    plan, nodes_before = executor.last_plan, len(executor.last_executed_optimized_graph().graph)
    before, specializer = resident(), executor._specializer
    specializer.release_if_due()
    assert not executor.debug_state().released
    specializer.prepare_release()
    now = 600.1
    specializer.release_if_due()  # as the timer does: no run in between
    freed = (before - resident()) / total
    assert freed >= 0.9, freed
    assert plan == "static-1" and executor.debug_state().released and executor.debug_state().kept is None
    assert len(executor.graph_for(feeds).graph) == nodes_before
    assert len(executor.last_executed_optimized_graph().graph) == nodes_before
    assert resident() < before - 0.9 * total  # reading the models again maps their weights
    assert (executor.run(feeds)[f"h{number}"] == expected).all() and executor.last_plan == plan
    print("freed", freed, "of the weights")
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_release_frees_the_weights_without_a_run(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_FREED)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("freed")


def _released(model: ir.Model | Path) -> Executor:
    clock = Clock()
    executor = api.compile(
        model, ExecutorOptions(release=True, wait=None), pipeline="O2", verify=False, clock=clock
    )
    run_any(executor, [rows(3)], times=2)
    clock.now = 61
    run_any(executor, [rows(3)], times=1)
    assert executor.debug_state().released
    return executor


def test_models_of_plans_are_read_again_after_a_release() -> None:
    executor = _released(parse(ANY))
    plans = [*executor._specializer._plans.plans, executor._specializer.cache.general()]
    assert [plan.name for plan in plans] == ["static-1", "general"]
    found = executor.graph_for(rows(3))
    assert executor.last_executed_optimized_graph() is found and last_executed_optimized_graph() is found
    assert ir.count_nodes(found.graph) == executor.debug_state().plans[0].nodes
    gone = weakref.ref(found)
    del found
    gc.collect()
    assert gone() is None
    assert executor.graph_for(any_feeds((2, 2, 2), (2, 2))).graph.outputs[0].name == "y"


def test_unreadable_model_of_a_plan_is_a_clear_error_and_runs_go_on(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    api.save(parse(ANY), path)
    executor = _released(path)
    [plan] = executor._specializer._plans.plans
    assert plan.kept._folder is not None
    shutil.rmtree(plan.kept._folder.path)
    with pytest.raises(UsageError, match="can't be read again after the release"):
        executor.last_executed_optimized_graph()
    run_any(executor, [rows(3)])
    assert executor.debug_state().plans[0].nodes > 0
    executor.flush()
    run_any(executor, [rows(3)])
    assert executor.last_executed_optimized_graph().graph.outputs[0].name == "y"


def test_release_is_postponed_if_no_file_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> publish.ScratchFolder:
        raise UsageError("the disk is full")

    clock = Clock()
    executor = api.compile(
        parse(ANY), ExecutorOptions(release=True, wait=None), pipeline="O2", verify=False, clock=clock
    )
    run_any(executor, [rows(3)], times=2)
    monkeypatch.setattr(publish, "ScratchFolder", full)
    clock.now = 61
    run_any(executor, [rows(3)], times=1)
    state = executor.debug_state()
    assert not state.released and state.kept == "the disk is full"
    monkeypatch.undo()
    clock.now = 122
    run_any(executor, [rows(3)], times=1)
    assert executor.debug_state().released and executor.debug_state().kept is None


def test_prepared_release_writes_no_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(*arguments: object) -> list[Path]:
        raise OSError("the disk is full")

    path, clock = tmp_path / "m.onnx", Clock()
    api.save(parse(ANY), path)
    options = ExecutorOptions(release=True, wait=None)
    executor = api.compile(path, options, pipeline="O2", verify=False, clock=clock)
    run_any(executor, [rows(3)], times=2)
    executor._specializer.prepare_release()
    assert not executor.debug_state().released
    found = executor.last_executed_optimized_graph()
    monkeypatch.setattr(ir, "save_together", full)
    monkeypatch.setattr(ir, "fingerprint", full)
    clock.now = 61
    executor._specializer.release_if_due()
    assert executor.debug_state().released and executor.debug_state().kept is None
    monkeypatch.undo()
    run_any(executor, [rows(3)])
    assert ir.fingerprint(executor.graph_for(rows(3))) == ir.fingerprint(found)


def test_failed_preparation_is_repeated_by_the_release(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> list[Path]:
        raise OSError("the disk is full")

    clock = Clock()
    options = ExecutorOptions(release=True, wait=None)
    executor = api.compile(parse(ANY), options, pipeline="O2", verify=False, clock=clock)
    run_any(executor, [rows(3)], times=2)
    monkeypatch.setattr(ir, "save_together", full)
    executor._specializer.prepare_release()
    monkeypatch.undo()
    clock.now = 61
    executor._specializer.release_if_due()
    assert executor.debug_state().released and executor.debug_state().kept is None


def test_timer_prepares_the_release_within_the_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    class Object:
        def prepare(self) -> None:
            calls.append("prepare")

        def release(self) -> None:
            calls.append("release")

    class Timer:
        def __init__(self, seconds: float, function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
            self.seconds, self.call = seconds, lambda: function(*arguments)
            timers.append(self)

        def start(self) -> None: ...

        def cancel(self) -> None: ...

    calls: list[str] = []
    timers: list[Timer] = []
    monkeypatch.setattr(threading, "Timer", Timer)
    timer, owner = ReleaseTimer(8.0), Object()
    for _ in range(2):
        timer.start(1.0, owner.prepare, owner.release)
    first, second = timers
    assert first.seconds < 8.0 < second.seconds
    first.call()
    second.call()
    assert calls == ["prepare", "release"]
    del owner
    second.call()  # without an effect: the object is gone
    assert calls == ["prepare", "release"]


def test_a_restarted_timer_has_no_threads_of_earlier_starts() -> None:
    class Object:
        def method(self) -> None: ...

    timer, owner, before = ReleaseTimer(3600.0), Object(), set(threading.enumerate())
    for since in range(3):
        timer.start(float(since), owner.method, owner.method)
    earlier, last = (set(threading.enumerate()) - before) - {*timer._timers}, timer._timers
    for thread in earlier:
        thread.join(10)
    assert not any(thread.is_alive() for thread in earlier)
    assert len(last) == 2 and all(thread.is_alive() for thread in last)


def test_original_is_released_by_the_timer_without_a_run() -> None:
    options = ExecutorOptions(release=True, wait=None, delay=0.2)
    executor = api.compile(parse(ANY), options, pipeline="O2", verify=False)
    run_any(executor, [rows(3)], times=2)
    limit = time.monotonic() + 60
    while not executor.debug_state().released:
        assert time.monotonic() < limit, executor.debug_state()
        time.sleep(0.01)


def test_models_of_plans_share_their_weights_in_files() -> None:
    numbers = ", ".join(map(str, range(512)))
    model = parse(f"g (float[N] x) => (float[N] y) <float[512] w = {{{numbers}}}> {{ y = Add(x, w) }}")
    plans = [KeptModel(model), KeptModel(copy(model))]
    store_together(plans)
    folder = plans[0]._folder
    assert folder is not None and folder is plans[1]._folder
    assert (folder.path / "weights.bin").stat().st_size == 512 * 4
    expected = ir.fingerprint(model, names=True)
    assert plans[0].get() is model and plans[0].is_stored
    for plan in plans:
        plan.spill()
        assert ir.fingerprint(plan.get(), names=True) == expected


def test_spilled_model_is_equal_and_written_once(tmp_path: Path) -> None:
    model = parse("g (float[N] x) => (float[N] y) <float[3] w = {1, 2, 3}> { y = Add(x, w) }")
    kept = KeptModel(model)
    assert kept.get() is model and kept.nodes == 1
    expected = ir.to_bytes(model)
    kept.spill()
    folder = kept._folder
    kept.spill()
    assert kept._folder is folder and ir.to_bytes(kept.get()) == expected


def test_idle_executor_is_not_kept_alive_by_its_timer() -> None:
    executor = api.compile(parse(ANY), ExecutorOptions(release=True, wait=None), pipeline="O2", verify=False)
    run_any(executor, [rows(3)], times=2)
    gone = weakref.ref(executor._specializer)
    del executor
    gc.collect()
    assert gone() is None


def test_session_has_no_copy_of_the_serialized_model() -> None:
    executor = api.compile(parse(ANY), pipeline="O2", verify=False)
    run_any(executor, [rows(3)])
    session = executor._specializer.cache.general().prepare().session
    assert session._model_bytes is None and np.array_equal(session.get_inputs()[0].shape, ["A", "B", "C"])


def test_file_of_a_large_model_outlives_its_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loadable_model, "MAPPED_BYTES", 0)
    executor = _released(parse(ANY))
    plan = executor._specializer._plans.plans[0]
    assert plan.kept._folder is plan._folder is not None
    assert plan.kept._last() is None  # nothing else has the model
    del executor, plan
    gc.collect()
    assert last_executed_optimized_graph().graph.outputs[0].name == "y"
