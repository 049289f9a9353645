"""The memory that a release frees, and the models of plans after it."""

from __future__ import annotations

import gc
import shutil
import subprocess
import sys
import textwrap
import weakref
from pathlib import Path

import numpy as np
import pytest

from graphopt import api, ir, publish
from graphopt.errors import UsageError
from graphopt.executor.executor import Executor
from graphopt.executor.executor_options import ExecutorOptions
from graphopt.executor.plan_model import KeptModel
from graphopt.executor.thread_local_switches import last_executed_optimized_graph
from graphopt.ort import loadable_model
from tests.executor.run_hooks import ANY, Clock, any_feeds, rows, run_any
from tests.model_testing import parse

#: Twelve products with weights of 4 MiB: about 50 MB.
_FREED = """
    import os, sys, time
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
    total = number * 4 * side**2

    options = ExecutorOptions(strategy="static:1", release=True, wait=None, delay=4.0)
    executor = graphopt.compile("m.onnx", options, pipeline="O1", verify=False)
    feeds = {"h0": np.ones((2, side), np.float32)}
    for _ in range(3):
        expected = executor.run(feeds)[f"h{number}"]
    plan, nodes_before = executor.last_plan, len(executor.last_executed_optimized_graph().graph)
    before, begin = resident(), time.monotonic()
    assert not executor.debug_state().released
    while not executor.debug_state().released or resident() > before - 0.9 * total:  # no run in between
        assert time.monotonic() < begin + 22, (before - resident()) / total
        time.sleep(0.01)
    assert time.monotonic() >= executor._specializer.cache.last_made + 4.0
    elapsed, freed = time.monotonic() - begin, (before - resident()) / total
    assert plan == "static-1" and executor.debug_state().kept is None
    assert len(executor.graph_for(feeds).graph) == nodes_before
    assert len(executor.last_executed_optimized_graph().graph) == nodes_before
    assert resident() < before - 0.9 * total  # reading the models again maps their weights
    assert (executor.run(feeds)[f"h{number}"] == expected).all() and executor.last_plan == plan
    print("freed", freed, "of the weights after", elapsed, "seconds")
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
    monkeypatch.setattr(loadable_model, "_LARGE", 0)
    executor = _released(parse(ANY))
    plan = executor._specializer._plans.plans[0]
    assert plan.kept._folder is plan._folder is not None
    assert plan.kept._last() is None  # nothing else has the model
    del executor, plan
    gc.collect()
    assert last_executed_optimized_graph().graph.outputs[0].name == "y"
