"""The profiling executor: which plans it makes, when, and that all of them are right."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphopt import api, ir
from graphopt.errors import RuntimeFailure, UsageError
from graphopt.executor.executor import Executor
from graphopt.executor.options import ExecutorOptions
from graphopt.executor.switches import fuser, optimized_execution, set_fusion_strategy
from graphopt.profile import FusionStrategy
from tests.specialize.models import feeds_of, positions
from tests.support import parse

#: y = x + n * z for any shapes that broadcast; n is the number of elements of x.
_ANY = """g (float[A, B, C] x, float[D, E] z) => (float[F, G, H] y) {
    s = Shape(x) n = Size(x) f = Cast<to = 1>(n) w = Mul(z, f) y = Add(x, w)
}"""


def _compiled(model: ir.Model | Path | None = None, **options: Any) -> Executor:
    return api.compile(model or positions(), ExecutorOptions(**options), pipeline="O2", verify=False)


def _expected(feeds: dict[str, np.ndarray]) -> np.ndarray:
    """What :func:`positions` computes."""
    result: np.ndarray = api.run(positions(), feeds)["y"]
    return result


def _any_feeds(shape: tuple[int, int, int], z: tuple[int, int]) -> dict[str, np.ndarray]:
    return {"x": np.full(shape, 2, np.float32), "z": np.ones(z, np.float32)}


def _run_any(executor: Executor, runs: Iterable[dict[str, np.ndarray]], times: int = 3) -> None:
    for feeds in runs:
        for _ in range(times):
            expected = feeds["x"] + np.float32(feeds["x"].size) * feeds["z"]
            np.testing.assert_array_equal(executor.run(feeds)["y"], expected)


# Plans ----------------------------------------------------------------------------------------


def test_the_first_run_is_watched_and_the_second_runs_what_was_made_for_it() -> None:
    executor = _compiled()
    feeds = feeds_of(1, 8)
    kinds = []
    for _ in range(3):
        np.testing.assert_allclose(executor.run(feeds)["y"], _expected(feeds), rtol=1e-5)
        kinds.append(ir.count_nodes(executor.last_executed_optimized_graph().graph))
    assert kinds[0] > kinds[1] == kinds[2]
    state = executor.debug_state()
    assert state.hits("general") == 1 and state.hits("static-1") == 2
    assert state.reasons == {"profiling": 1} and state.depth == 11


def test_fifteen_shapes_of_one_pattern_need_three_plans() -> None:
    executor = _compiled(parse(_ANY))
    _run_any(executor, (_any_feeds((2, 3, length), (3, length)) for length in range(4, 19)))
    state = executor.debug_state()
    assert [plan.name for plan in state.plans] == ["static-1", "static-2", "dynamic-1", "general"]
    assert state.hits("dynamic-1") == 2 + 12 * 3 and state.hits("general") == 3


def test_fourteen_patterns_make_twelve_plans_and_the_rest_runs_the_general_one() -> None:
    one_or_more = [(a, b, c) for a in (1, 2) for b in (1, 3) for c in (1, 5)]
    runs = [_any_feeds(shape, (1, 1)) for shape in one_or_more]
    runs += [_any_feeds(shape, (shape[1], 1)) for shape in one_or_more if shape[1] > 1]
    runs += [_any_feeds(shape, (1, shape[2])) for shape in ((1, 1, 5), (2, 3, 5))]
    assert len(runs) == 14
    executor = _compiled(parse(_ANY))
    _run_any(executor, runs)
    state = executor.debug_state()
    assert state.compiled == 12 and state.depth == 0
    behaviours = [plan.name.partition("-")[0] for plan in state.plans if plan.kind == "optimized"]
    assert behaviours == ["static"] * 2 + ["dynamic"] * 10
    assert state.hits("general") == 12 + 2 * 3
    assert sum(count for why, count in state.reasons.items() if why.startswith("all spec")) == 6


def test_dims_that_are_equal_by_chance_stay_right() -> None:
    executor = _compiled(parse(_ANY), strategy=FusionStrategy.parse("dynamic:3"))
    square = _any_feeds((4, 4, 4), (4, 4))
    _run_any(executor, [square, _any_feeds((4, 4, 5), (4, 5)), _any_feeds((6, 6, 6), (6, 6)), square])
    names = [plan.name for plan in executor.debug_state().plans]
    assert names == ["dynamic-1", "dynamic-2", "general"]


def test_several_runs_are_watched_if_asked() -> None:
    executor = _compiled(parse(_ANY), profiled_runs=2)
    _run_any(executor, [_any_feeds((2, 3, 4), (3, 4)), _any_feeds((2, 3, 5), (3, 5))], times=1)
    assert executor.debug_state().compiled == 0
    _run_any(executor, [_any_feeds((2, 3, 6), (3, 6))], times=1)
    (plan, _) = executor.debug_state().plans
    assert plan.name == "static-1" and plan.hits == 1 and "[2, 3, s0]" in plan.guard


def test_inputs_without_elements_are_not_specialized_for() -> None:
    executor = _compiled(parse(_ANY))
    _run_any(executor, [_any_feeds((0, 3, 4), (3, 4))])
    assert executor.debug_state().compiled == 0


def test_the_plans_used_least_are_let_go_and_their_depth_is_gone() -> None:
    executor = _compiled(parse(_ANY), most_plans=2, strategy=FusionStrategy.parse("static:4"))
    _run_any(executor, (_any_feeds((1, 1, length), (1, 1)) for length in (2, 3, 4)))
    state = executor.debug_state()
    assert [plan.name for plan in state.plans] == ["static-2", "static-3", "general"]
    assert state.evicted == 1 and state.depth == 1
    _run_any(executor, [_any_feeds((1, 1, 2), (1, 1))])
    assert executor.debug_state().depth == 0


def test_what_can_not_be_specialized_is_told_and_runs_the_general_plan() -> None:
    def refuse(model: ir.Model, first: tuple[str, ...]) -> ir.Model:
        if first:
            raise UsageError("no")
        return model

    whole = _compiled(parse(_ANY))
    executor = Executor(lambda: parse(_ANY), refuse, whole._prepare, whole._host, ExecutorOptions())
    _run_any(executor, [_any_feeds((1, 2, 3), (2, 3))])
    state = executor.debug_state()
    assert state.compiled == 0 and len(state.failures) == 1 and state.depth == 11  # not tried again


# Strategies -----------------------------------------------------------------------------------


def test_a_new_strategy_holds_for_new_executors_and_after_a_flush() -> None:
    old = _compiled(parse(_ANY))
    before = set_fusion_strategy("dynamic:1")
    try:
        new = _compiled(parse(_ANY))
        assert before == FusionStrategy()
        assert (old.debug_state().depth, new.debug_state().depth) == (12, 1)
        old.flush()
        assert old.debug_state().strategy == "dynamic:1"
        _run_any(old, [_any_feeds((1, 2, 3), (2, 3))])
        assert [plan.name for plan in old.debug_state().plans] == ["dynamic-1", "general"]
    finally:
        assert set_fusion_strategy(before) == FusionStrategy.parse("dynamic:1")


def test_more_depth_than_the_strategy_has_is_warned_of_and_static() -> None:
    with pytest.warns(UserWarning, match="makes 1 specializations, not 2"):
        executor = _compiled(parse(_ANY), strategy=FusionStrategy.parse("dynamic:1"), depth=2)
    _run_any(executor, (_any_feeds((1, 1, length), (1, 1)) for length in (2, 3)))
    assert [plan.name for plan in executor.debug_state().plans] == ["static-1", "dynamic-1", "general"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert _compiled(parse(_ANY), depth=0).debug_state().depth == 0


# Memory ---------------------------------------------------------------------------------------


class _Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def _releasing(model: ir.Model | Path, clock: _Clock, **options: Any) -> Executor:
    settings = ExecutorOptions(release=True, **options)
    return api.compile(model, settings, pipeline="O2", verify=False, clock=clock)


def test_the_original_is_released_past_the_delay_on_the_next_call(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    api.save(parse(_ANY), path)
    clock = _Clock()
    executor = _releasing(path, clock)
    feeds = _any_feeds((1, 2, 3), (2, 3))
    _run_any(executor, [feeds], times=2)
    clock.now = 60.0
    _run_any(executor, [feeds], times=1)
    assert not executor.debug_state().released
    clock.now = 60.1
    assert not executor.debug_state().released
    _run_any(executor, [feeds], times=1)
    assert executor.debug_state().released
    _run_any(executor, [_any_feeds((1, 2, 4), (2, 4))])
    state = executor.debug_state()
    assert state.compiled == 1 and any("was released" in why for why in state.reasons)
    executor.flush()
    _run_any(executor, [feeds])
    assert executor.debug_state().compiled == 1 and not executor.debug_state().released


def test_a_released_model_that_came_from_no_file_can_not_be_flushed() -> None:
    clock = _Clock()
    executor = _releasing(parse(_ANY), clock)
    feeds = _any_feeds((1, 2, 3), (2, 3))
    _run_any(executor, [feeds], times=2)
    clock.now = 61
    _run_any(executor, [feeds], times=1)
    with pytest.raises(UsageError, match="came from no file"):
        executor.flush()
    _run_any(executor, [feeds, _any_feeds((2, 2, 2), (2, 2))])


def test_it_is_released_at_once_where_the_run_was_watched_in_the_same_call() -> None:
    executor = _releasing(parse(_ANY), _Clock(), profiled_runs=0)
    _run_any(executor, [_any_feeds((1, 2, 3), (2, 3))], times=1)
    state = executor.debug_state()
    assert state.released and state.hits("static-1") == 1 and state.hits("general") == 0


def test_after_a_release_the_general_plan_serves_whatever_comes() -> None:
    executor = _releasing(parse(_ANY), _Clock(), profiled_runs=0)
    _run_any(executor, [_any_feeds((1, 2, 3), (2, 3)), _any_feeds((2, 2, 3), (2, 3))])
    with optimized_execution(False):
        _run_any(executor, [_any_feeds((1, 2, 3), (2, 3))])
    assert executor.debug_state().released


def test_a_flush_takes_the_model_as_its_file_is_now(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    api.save(parse(_ANY), path)
    clock = _Clock()
    executor = _releasing(path, clock)
    _run_any(executor, [_any_feeds((1, 2, 3), (2, 3))], times=2)
    clock.now = 61
    _run_any(executor, [_any_feeds((1, 2, 3), (2, 3))], times=1)
    api.save(parse("g (float[N] u) => (float[N] v) { v = Neg(u) }"), path)
    executor.flush()
    assert executor.run({"u": np.ones(2, np.float32)})["v"].tolist() == [-1, -1]


@pytest.mark.parametrize("runs", [0, 1])
@pytest.mark.parametrize(
    "feeds",
    [
        {"x": np.ones((4, 3)), "z": np.ones((1, 3), np.float32)},
        {"x": np.ones((1, 4, 3)), "z": np.ones((1, 3), np.float32)},
        {"z": np.ones((1, 3), np.float32)},
        {"x": None, "z": np.ones((1, 3), np.float32)},
        {"x": np.ones((1, 2, 5), np.float32), "z": np.ones((4, 3), np.float32)},
    ],
    ids=["double", "rank", "missing", "none", "refused"],
)
def test_bad_inputs_use_up_one_specialization_at_most(runs: int, feeds: dict[str, Any]) -> None:
    executor = _compiled(parse(_ANY), profiled_runs=runs)
    for _ in range(3):
        with pytest.raises((UsageError, RuntimeFailure)):
            executor.run(feeds)
    assert executor.debug_state().depth >= 11
    _run_any(executor, [_any_feeds((1, 2, 3), (2, 3))])
    assert executor.debug_state().hits("static-2") + executor.debug_state().hits("static-1") >= 2


@pytest.mark.parametrize("depth", [-1])
def test_nonsense_is_refused(depth: int) -> None:
    with pytest.raises(UsageError, match="can't be negative"):
        ExecutorOptions(depth=depth)
    with pytest.raises(UsageError, match="inputs are a dict"):
        _compiled(parse(_ANY))([1, 2])


def test_declared_sizes_stay_declared() -> None:
    model = parse("g (float[N, 3] x, float[M] y) => (float[N, 3] a, float[M] b) { a = Neg(x) b = Neg(y) }")
    executor = _compiled(model, strategy=FusionStrategy.parse("dynamic:2"))
    good = {"x": np.ones((3, 3), np.float32), "y": np.ones(3, np.float32)}
    for _ in range(3):
        assert executor.run(good)["b"].tolist() == [-1, -1, -1]
    with pytest.raises(RuntimeFailure, match="Expected: 3"):
        executor.run({"x": np.ones((1, 1), np.float32), "y": np.ones(1, np.float32)})


# Threads --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["blocking", "background"])
def test_threads_get_right_outputs_whatever_is_compiled(mode: str) -> None:
    executor = _compiled(parse(_ANY), compile=mode, strategy=FusionStrategy.parse("static:2,dynamic:2"))
    wrong: list[object] = []

    def work(seed: int) -> None:
        random = np.random.default_rng(seed)
        for _ in range(60):
            b, c = (int(size) for size in random.integers(1, 6, 2))
            try:
                _run_any(executor, [_any_feeds((2, b, c), (b, c))], times=1)
            except Exception as error:  # told by the main thread
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


def test_in_the_background_the_general_plan_runs_until_the_other_is_there() -> None:
    go = threading.Event()
    whole = _compiled(parse(_ANY))

    def slow(model: ir.Model, first: tuple[str, ...]) -> ir.Model:
        assert not first or go.wait(30)
        return model

    options = ExecutorOptions(compile="background")
    executor = Executor(lambda: parse(_ANY), slow, whole._prepare, whole._host, options)
    feeds = _any_feeds((1, 2, 3), (2, 3))
    _run_any(executor, [feeds])
    state = executor.debug_state()
    assert state.compiling and state.hits("general") == 3
    go.set()
    executor.wait()
    _run_any(executor, [feeds], times=1)
    assert executor.debug_state().hits("static-1") == 1


# Switches -------------------------------------------------------------------------------------


def test_the_model_runs_as_it_came_where_optimizing_is_off() -> None:
    executor = _compiled()
    feeds = feeds_of(1, 8)
    with optimized_execution(False):
        np.testing.assert_allclose(executor.run(feeds)["y"], _expected(feeds), rtol=1e-5)
        assert executor.debug_state().hits("fallback") == 1
    with pytest.raises(ZeroDivisionError), optimized_execution(False):
        _ = 1 / 0
    executor.run(feeds)
    assert executor.debug_state().hits("general") == 1


@pytest.mark.parametrize(("name", "ops"), [("none", "Erf"), ("ort", "Erf"), ("builtin", "Gelu")])
def test_the_fuser_chooses_who_fuses(name: str, ops: str) -> None:
    model = parse("""g (float[N, 64] x) => (float[N, 64] y) <float r = {1.4142135}, float one = {1}, float h = {0.5}> {
        a = Div(x, r) b = Erf(a) c = Add(b, one) d = Mul(x, c) y = Mul(d, h) }""")
    with fuser(name):
        executor = api.compile(model, verify=False)
    executor.run({"x": np.ones((2, 64), np.float32)})
    assert ops in {node.op_type for node in executor.last_executed_optimized_graph().graph}


@pytest.mark.parametrize(("name", "why"), [("native", "not built"), ("fuser1", "no fuser is called")])
def test_a_fuser_that_is_not_there_is_refused(name: str, why: str) -> None:
    with pytest.raises(UsageError, match=why), fuser(name):
        pass


# Nested tensors, and others' ------------------------------------------------------------------


def test_inputs_and_outputs_are_nested_as_asked() -> None:
    executor = api.compile(
        parse(_ANY), inputs={"tensors": ["x", ("z",)]}, outputs=[{"sum": "y"}], pipeline="O2", verify=False
    )
    feeds = _any_feeds((1, 2, 3), (2, 3))
    for _ in range(3):
        [found] = executor({"tensors": [feeds["x"], (feeds["z"],)]})
        assert found["sum"][0, 0, 0] == 2 + 6
    with pytest.raises(UsageError, match=r"inputs\['tensors'\] is no list of 2"):
        executor({"tensors": [feeds["x"]]})
    with pytest.raises(UsageError, match="has no part 'other'"):
        executor({"other": 1})


@pytest.mark.parametrize(
    ("arguments", "why"),
    [({"inputs": ["x", "q"]}, "no input is called 'q'"), ({"outputs": ["y", "y"]}, "named twice")],
)
def test_names_that_are_not_there_are_refused(arguments: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        api.compile(parse(_ANY), **arguments)


class _Foreign:
    """A tensor of somebody else."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **arguments: Any) -> Any:
        return self.array.__dlpack__(**arguments)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


def test_tensors_of_others_are_read_where_they_are() -> None:
    from graphopt.executor.structure import as_array

    array = np.ones((1, 2, 3), np.float32)
    assert np.shares_memory(as_array(_Foreign(array)), array)
    executor = _compiled(parse(_ANY))
    assert executor({"x": _Foreign(array), "z": np.zeros((2, 3), np.float32)})["y"].sum() == 6


def test_values_of_onnxruntime_stay_where_they_are() -> None:
    import onnxruntime

    executor = _compiled(parse(_ANY))
    for length in (3, 3, 3, 4):
        feeds = _any_feeds((1, 2, length), (2, length))
        values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in feeds.items()}
        found = executor.run_bound(values)["y"]
        assert isinstance(found, onnxruntime.OrtValue)
        np.testing.assert_array_equal(found.numpy(), feeds["x"] + np.float32(2 * length))
    assert executor.debug_state().hits("static-1") == 2


def test_missing_and_unknown_inputs_are_told() -> None:
    executor = _compiled(parse(_ANY))
    feeds = _any_feeds((1, 2, 3), (2, 3))
    bad: list[Callable[[], object]] = [
        lambda: executor.run({"x": feeds["x"]}),
        lambda: executor.run({**feeds, "other": feeds["x"]}),
    ]
    _run_any(executor, [feeds])
    for call in bad:
        with pytest.raises(UsageError):
            call()
    _run_any(executor, [feeds])
    assert executor.graph_for(feeds) is executor.last_executed_optimized_graph()
