"""Executors whose plans are made by the pipelines of the JIT."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt import ir
from graphopt.errors import UsageError
from graphopt.executor.executor import Executor
from graphopt.executor.executor_options import ExecutorOptions
from tests.executor.run_hooks import ANY, Clock, any_feeds, rows, run_any
from tests.model_testing import parse
from tests.specialization.models import feeds_of, positions
from tests.specialization.recording_passes import Look

#: A loop, a branch, a function, and values with data-dependent shapes.
NESTED = """<ir_version: 8, opset_import: ["" : 17, "own" : 1]> g (float[N] x, int64 n) => (float[N] y, int64[1, M] found)
<bool yes = {1}, float zero = {0}> {
    z = own.twice(x)
    s = ReduceSum<keepdims = 0>(x)
    c = Greater(s, zero)
    u = Loop(n, yes, z) <body = b (int64 i, bool going, float[N] a) => (bool more, float[N] next) {
        more = Identity(going) next = Add(a, x)
    }>
    y = If (c) <then_branch = t () => (float[N] p) { p = Neg(u) }, else_branch = e () => (float[N] q) { q = Abs(u) }>
    found = NonZero(y)
}
<opset_import: ["" : 17], domain: "own"> twice (a) => (b) { b = Add(a, a) }"""


def jit(
    model: ir.Model | Path | None = None, arguments: dict[str, Any] | None = None, **options: Any
) -> Executor:
    """An executor with the pipelines of the JIT; by default not verified."""
    given = ExecutorOptions(pipelines="jit", **{"wait": None, **options})
    return graphopt.compile(
        parse(ANY) if model is None else model, given, **{"verify": False, **(arguments or {})}
    )


def pipelines(executor: Executor) -> dict[str, str]:
    """The pipeline of each plan."""
    return {plan.name: plan.pipeline for plan in executor.debug_state().plans}


def nested_feeds(size: int, trips: int, sign: float = 1) -> dict[str, np.ndarray]:
    """Inputs of :data:`NESTED`."""
    return {"x": np.float32(sign) * np.arange(size, dtype=np.float32), "n": np.array(trips)}


def check_nested(executor: Executor, feeds: dict[str, np.ndarray]) -> None:
    """Run an executor of :data:`NESTED`, and check its outputs."""
    u = feeds["x"] * (2 + feeds["n"]).astype(np.float32)
    y = -u if feeds["x"].sum() > 0 else np.abs(u)
    found = executor.run(feeds)
    assert list(found) == ["y", "found"]
    np.testing.assert_allclose(found["y"], y, rtol=1e-6)
    np.testing.assert_array_equal(found["found"], [np.flatnonzero(y)])


@pytest.mark.parametrize(
    ("fuser", "optimized"),
    [("none", "plan-optimized-builtin"), ("builtin", "plan-optimized-builtin"), ("native", "plan-optimized")],
)
def test_plans_in_the_order_of_the_jit(fuser: str, optimized: str) -> None:
    with graphopt.fuser(fuser):
        executor = jit(strategy="static:1,dynamic:1", arguments={"verify": True})
    run_any(executor, [rows(3), rows(4), rows(5)], times=2)
    run_any(executor, [{**rows(5), "z": np.ones((1, 5), np.float32)}], times=2)
    assert pipelines(executor) == {
        "static-1": optimized,
        "dynamic-1": optimized,
        "general": "plan-general",
        "profiled": "plan-profiled",
    }
    state = executor.debug_state()
    assert [state.hits(name) for name in ("static-1", "dynamic-1", "profiled", "general")] == [1, 3, 2, 2]
    assert not state.remarks and not state.failures
    assert sorted(plan.id for plan in state.plans) == [1, 2, 3, 4]
    assert all(plan.compile_seconds > 0 for plan in state.plans)
    assert "  compilation 1 by plan-profiled in " in str(state)


def test_preset_is_the_default() -> None:
    executor = graphopt.compile(parse(ANY), ExecutorOptions(wait=None), verify=False)
    run_any(executor, [rows(3)], times=2)
    assert pipelines(executor) == {"static-1": "O3", "general": "O3"}
    text = graphopt.compile(parse(ANY), ExecutorOptions(depth=0), pipeline="dce,cse", verify=False)
    run_any(text, [rows(3)], times=1)
    assert pipelines(text) == {"general": "dce,cse"}


def test_depth_0_runs_the_general_plan() -> None:
    executor = jit(depth=0)
    run_any(executor, [rows(3), rows(4)])
    assert pipelines(executor) == {"general": "plan-general"}


def test_required_gradients_select_the_pipeline_with_gradients() -> None:
    executor = jit(parse("g (float[N] x) => (float[N] y) { t = Sin(x) y = Exp(t) }"), requires_grad=("x",))
    x = np.linspace(-1, 1, 5, dtype=np.float32)
    for _ in range(3):
        np.testing.assert_allclose(executor.run({"x": x})["y"], np.exp(np.sin(x)), rtol=1e-6)
    assert pipelines(executor) == {"static-1": "plan-optimized-gradients", "profiled": "plan-profiled"}
    for _ in range(3):
        outputs, pullback = executor.vjp({"x": x})
        gradient = pullback({"y": np.ones_like(x)})["x"]
        np.testing.assert_allclose(gradient, outputs["y"] * np.cos(x), rtol=1e-5)


@pytest.mark.parametrize("watch", ["inputs", "shapes", "all"])
@pytest.mark.parametrize("fuser", ["builtin", "native"])
def test_bodies_and_functions(fuser: str, watch: str) -> None:
    with graphopt.fuser(fuser):
        executor = jit(parse(NESTED), {"verify": True}, watch=watch)
    for size, trips, sign in [
        (3, 2, 1),
        (3, 2, -1),
        (4, 0, 1),
        (4, 3, 1),
        (5, 3, -1),
        (6, 3, 1),
        (7, 1, -1),
        (1, 1, 1),
    ]:
        for _ in range(2):
            check_nested(executor, nested_feeds(size, trips, sign))
    state = executor.debug_state()
    assert not state.remarks and not state.failures and state.hits("profiled") > 1
    assert state.watch_runs == 0 and (state.watched > 0) == (watch != "inputs")


def test_specializations_observe_the_values_of_the_profiled_plan(tmp_path: Path) -> None:
    file = tmp_path / "seen.txt"
    with graphopt.fuser("native"):
        executor = jit(parse(NESTED), {"pre_passes": [Look(str(file))]}, watch="shapes", strategy="static:1")
    for _ in range(3):
        check_nested(executor, nested_feeds(3, 2))
    assert executor.last_plan == "static-1"
    (line,) = file.read_text().splitlines()  # passes of the caller run in specializations only
    assert line == "found,n,x [N]"
    assert "1 intermediate value watched, 0 left out" in str(executor.debug_state())


def test_no_profiled_runs() -> None:
    executor = jit(parse(NESTED), profiled_runs=0, watch="shapes", strategy="static:1")
    for feeds in (nested_feeds(3, 2), nested_feeds(3, 2), nested_feeds(4, 2)):
        check_nested(executor, feeds)
    state = executor.debug_state()
    assert [state.hits(name) for name in ("static-1", "general", "profiled")] == [2, 1, 0]


def test_background() -> None:
    executor = jit(parse(NESTED), compile="background", strategy="static:1")
    check_nested(executor, nested_feeds(3, 2))
    executor.wait()
    check_nested(executor, nested_feeds(3, 2))
    assert executor.last_plan == "static-1"


def test_profiling_switch() -> None:
    executor = jit(strategy="static:2")
    with graphopt.profiled_execution(False):
        run_any(executor, [rows(3)])
    assert pipelines(executor) == {"fallback": "fallback"}
    run_any(executor, [rows(3)], times=2)
    with graphopt.profiled_execution(False):
        run_any(executor, [rows(3)], times=1)  # existing specializations are used
        assert executor.last_plan == "static-1"
        run_any(executor, [rows(4)], times=2)
        assert executor.last_plan == "fallback"
    with graphopt.optimized_execution(False):
        run_any(executor, [rows(3)], times=1)
        assert executor.last_plan == "fallback"
    assert executor.debug_state().depth == 1
    run_any(executor, [rows(4)], times=2)
    assert executor.last_plan == "static-2"


def test_profiling_switch_with_a_preset() -> None:
    executor = graphopt.compile(parse(ANY), ExecutorOptions(wait=None), pipeline="O2", verify=False)
    with graphopt.profiled_execution(False):
        run_any(executor, [rows(3)])
        state = executor.debug_state()
        assert (state.hits("general"), state.profiled, state.reasons) == (3, 0, {"profiling is off": 3})
        with pytest.raises(ZeroDivisionError), graphopt.profiled_execution(True):
            raise ZeroDivisionError
        run_any(executor, [rows(3)], times=1)
    run_any(executor, [rows(3)], times=2)
    assert executor.last_plan == "static-1"


def test_graph_for_returns_the_plan_that_would_run() -> None:
    executor = jit()
    graph = executor.graph_for(rows(3))
    assert [node.op_type for node in graph.graph][-1] == "Counter"
    run_any(executor, [rows(3)], times=1)
    assert executor.last_executed_optimized_graph() is graph


def test_bound_runs_are_observed() -> None:
    import onnxruntime

    executor = jit(parse(NESTED), watch="shapes", strategy="static:1")
    values = {
        name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in nested_feeds(3, 2).items()
    }
    for plan in ("profiled", "static-1"):
        found = executor.run_bound(values)
        assert list(found) == ["y", "found"] and executor.last_plan == plan
        np.testing.assert_array_equal(found["found"].numpy(), [[1, 2]])


def test_shared_buffers_and_loops() -> None:
    import onnxruntime

    text = "g (float[2] s, float[2] x) => (float[2] next, float[2] y) { next = Add(s, x) y = Mul(next, x) }"
    executor = jit(parse(text), strategy="static:1")
    x = np.ones(2, np.float32)
    for count in range(1, 4):
        state = onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(2, np.float32))
        values = {"s": state, "x": onnxruntime.OrtValue.ortvalue_from_numpy(x * count)}
        assert executor.run_bound(values, share={"next": "s"})["next"] is state
        np.testing.assert_array_equal(state.numpy(), x * count)
    loop = jit(parse(text), strategy="static:1").loop([("s", "next")])
    assert loop({"s": 0 * x, "x": x})["y"].tolist() == [1, 1]
    assert [loop({"x": x})["y"].tolist()[0] for _ in range(4)] == [2, 3, 4, 5]


@pytest.mark.parametrize("from_file", [False, True])
def test_release_and_flush(tmp_path: Path, from_file: bool) -> None:
    clock, path = Clock(), tmp_path / "m.onnx"
    ir.save(parse(ANY), path)
    options = ExecutorOptions(pipelines="jit", strategy="static:1", release=True, delay=60, wait=None)
    executor = graphopt.compile(path if from_file else parse(ANY), options, clock=clock, verify=False)
    run_any(executor, [rows(3)], times=2)
    clock.now = 61.0
    run_any(executor, [rows(3)], times=1)
    assert executor.debug_state().released
    assert list(pipelines(executor)) == ["static-1", "general"]
    run_any(executor, [rows(3), rows(4)], times=2)
    assert executor.last_plan == "general"
    if not from_file:
        with pytest.raises(UsageError, match="was released"):
            executor.flush()
        return
    executor.flush()
    run_any(executor, [rows(4)], times=2)
    assert {"static-1", "profiled"} == set(pipelines(executor))


def test_profiled_plan_that_fails_is_replaced_by_the_general_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from graphopt.executor import plan_factory

    def fail(*arguments: object, **options: object) -> None:
        raise ValueError("no plan")

    monkeypatch.setattr(plan_factory, "ProfiledPlan", fail)
    executor = jit(strategy="static:1", watch="shapes")
    run_any(executor, [rows(3)])
    assert list(pipelines(executor)) == ["static-1", "general"]
    assert executor.debug_state().remarks == ("there is no profiled plan: no plan",)


def test_fork_does_not_wait_for_the_profiled_plan_of_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = jit()
    cache = executor._specializer.cache
    with cache._profiled_lock, monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: -1)  # as in a fork
        run_any(executor, [rows(3)], times=1)
    assert executor.last_plan == "profiled"


def test_models_of_old_ir_versions() -> None:
    model = positions(ir_version=7)
    executor = jit(model, {"verify": True}, watch="all")
    expected = graphopt.run(model, feeds_of(1, 8))["y"]
    for _ in range(3):
        np.testing.assert_allclose(executor.run(feeds_of(1, 8))["y"], expected, rtol=1e-5)
    assert executor.last_plan == "static-1" and not executor.debug_state().remarks


def test_fixed_dims() -> None:
    model = parse("g (float[N, M] x) => (float[N, M] y) { t = Neg(x) y = Abs(t) }")
    executor = jit(model, {"dims": {"N": 3}, "verify": True})
    for columns in (2, 2, 4, 4, 5, 5):
        x = -np.ones((3, columns), np.float32)
        np.testing.assert_array_equal(executor.run({"x": x})["y"], -x)
    state = executor.debug_state()
    assert state.compiled == 3 and not state.failures


def test_threads() -> None:
    executor = jit(parse(NESTED), watch="shapes")
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for step in range(12):
                check_nested(executor, nested_feeds(2 + (number + step) % 5, step % 3, (-1.0) ** number))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert not failures and not any(thread.is_alive() for thread in threads)
    state = executor.debug_state()
    assert sum(plan.hits for plan in state.plans) == 96 and not state.remarks and not state.failures


def test_a_given_pipeline_is_an_error() -> None:
    with pytest.raises(UsageError, match="pipelines='jit' excludes pipeline"):
        jit(arguments={"pipeline": "O2"})
    with pytest.raises(UsageError, match="pipelines must be preset or jit, not 'JIT'"):
        ExecutorOptions(pipelines="JIT")  # type: ignore[arg-type]


def test_setting() -> None:
    with graphopt.config.patch(pipelines="jit"):
        executor = graphopt.compile(parse(ANY), verify=False)
        preset = graphopt.compile(parse(ANY), ExecutorOptions(pipelines="preset"), verify=False)
    run_any(executor, [rows(3)], times=1)
    run_any(preset, [rows(3)], times=1)
    assert (executor.last_plan, preset.last_plan) == ("profiled", "general")
    with pytest.raises(UsageError, match="pipelines can't be 'other': give preset or jit"):
        graphopt.config.patch(pipelines="other").__enter__()


def test_strict_fusion_applies_to_specializations() -> None:
    text = "g (float[N] x) => (float[N] y) { t = Sin(x) y = Exp(t) }"
    model = parse(text)
    model.graph[0].name, model.graph[1].name = "/a/sin", "/a/exp"
    executor = jit(model, {"strict_fusion": ["/a"]})
    x = np.ones(3, np.float32)
    for _ in range(3):
        np.testing.assert_allclose(executor.run({"x": x})["y"], np.exp(np.sin(x)), rtol=1e-6)
    (failure,) = executor.debug_state().failures
    assert "/a" in failure


def test_feeds_are_checked() -> None:
    executor = jit()
    with pytest.raises(UsageError):
        executor.run({"x": any_feeds((1, 2, 3), (2, 3))["x"]})
    run_any(executor, [rows(3)], times=2)
