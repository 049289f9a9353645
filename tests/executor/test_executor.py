"""The profiling executor: its plans, and their correctness."""

from __future__ import annotations

import copy
import pickle
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from graphopt import api, ir
from graphopt.context import Context
from graphopt.errors import GraphoptError, RuntimeFailure, UsageError, VerificationFailed
from graphopt.executor.executor import Executor
from graphopt.executor.executor_options import ExecutorOptions
from graphopt.executor.thread_local_switches import fuser, optimized_execution, set_fusion_strategy
from graphopt.passes.base import Pass
from graphopt.profile import FusionStrategy, Guard
from tests.cli.broken_passes import ReluToSigmoid
from tests.executor.run_hooks import (
    ANY,
    Interrupted,
    any_feeds,
    compiled,
    rows,
    run_any,
    with_optimizer,
)
from tests.model_testing import parse
from tests.specialization.models import feeds_of, positions


def _expected(feeds: dict[str, np.ndarray]) -> np.ndarray:
    """The expected output of :func:`positions`."""
    result: np.ndarray = api.run(positions(), feeds)["y"]
    return result


# Plans ----------------------------------------------------------------------------------------


def test_first_run_is_profiled_and_second_run_is_specialized() -> None:
    executor = compiled()
    feeds = feeds_of(1, 8)
    kinds = []
    for _ in range(3):
        np.testing.assert_allclose(executor.run(feeds)["y"], _expected(feeds), rtol=1e-5)
        kinds.append(ir.count_nodes(executor.last_executed_optimized_graph().graph))
    assert kinds[0] > kinds[1] == kinds[2]
    state = executor.debug_state()
    assert state.hits("general") == 1 and state.hits("static-1") == 2
    assert state.reasons == {"profiling": 1} and state.depth == 11


def test_fifteen_shapes_of_one_rank_need_three_plans() -> None:
    executor = compiled(parse(ANY))
    run_any(executor, (any_feeds((2, 3, length), (3, length)) for length in range(4, 19)))
    state = executor.debug_state()
    assert [plan.name for plan in state.plans] == ["static-1", "static-2", "dynamic-1", "general"]
    assert state.hits("dynamic-1") == 2 + 12 * 3 and state.hits("general") == 3


def test_fourteen_patterns_make_twelve_plans() -> None:
    one_or_more = [(a, b, c) for a in (1, 2) for b in (1, 3) for c in (1, 5)]
    runs = [any_feeds(shape, (1, 1)) for shape in one_or_more]
    runs += [any_feeds(shape, (shape[1], 1)) for shape in one_or_more if shape[1] > 1]
    runs += [
        {**any_feeds((1, 1, 1), (1, 1)), "x": np.full(shape, 2, np.float32)} for shape in ((5,), (2, 3, 5, 7))
    ]
    assert len(runs) == 14
    model = parse(ANY)  # inputs have a fixed element type, but any rank
    model.graph.inputs[0].shape = model.graph.outputs[0].shape = None
    executor = compiled(model)
    run_any(executor, runs)
    state = executor.debug_state()
    assert state.compiled == 12 and state.depth == 0
    kinds = [plan.name.partition("-")[0] for plan in state.plans if plan.kind == "optimized"]
    assert kinds == ["static"] * 2 + ["dynamic"] * 10
    assert state.hits("general") == 12 + 2 * 3
    assert sum(count for why, count in state.reasons.items() if why.startswith("all spec")) == 6


def test_accidentally_equal_dims_are_guarded() -> None:
    executor = compiled(parse(ANY), strategy=FusionStrategy.parse("dynamic:3"))
    square = any_feeds((4, 4, 4), (4, 4))
    run_any(executor, [square, any_feeds((4, 4, 5), (4, 5)), any_feeds((6, 6, 6), (6, 6)), square])
    names = [plan.name for plan in executor.debug_state().plans]
    assert names == ["dynamic-1", "dynamic-2", "general"]


def test_profiled_runs_option() -> None:
    executor = compiled(parse(ANY), profiled_runs=2)
    run_any(executor, [any_feeds((2, 3, 4), (3, 4)), any_feeds((2, 3, 5), (3, 5))], times=1)
    assert executor.debug_state().compiled == 0
    run_any(executor, [any_feeds((2, 3, 6), (3, 6))], times=1)
    (plan, _) = executor.debug_state().plans
    assert plan.name == "static-1" and plan.hits == 1 and "[2, 3, s0]" in plan.guard


def test_empty_inputs_are_not_specialized() -> None:
    executor = compiled(parse(ANY))
    run_any(executor, [any_feeds((0, 3, 4), (3, 4))])
    assert executor.debug_state().compiled == 0


def test_least_recently_used_plan_is_evicted_without_restoring_depth() -> None:
    executor = compiled(parse(ANY), most_plans=2, strategy=FusionStrategy.parse("static:4"))
    run_any(executor, [rows(2), rows(3), rows(2)], times=2)
    run_any(executor, [rows(4)])
    state = executor.debug_state()
    assert [plan.name for plan in state.plans] == ["static-1", "static-3", "general"]
    assert state.evicted == 1 and state.depth == 1
    run_any(executor, [rows(3)])  # they count as new inputs
    state = executor.debug_state()
    assert [plan.name for plan in state.plans] == ["static-3", "static-4", "general"]
    assert state.evicted == 2 and state.depth == 0 and state.runs == 6 + 3 + 3
    assert "2 plans evicted as least recently used, after 4 runs" in str(state)


@pytest.mark.parametrize("fault", [UsageError("no"), ValueError("a fault of a pass")])
@pytest.mark.parametrize("mode", ["blocking", "background"])
def test_failed_specialization_is_reported_and_runs_the_general_plan(mode: str, fault: Exception) -> None:
    def refuse_small(model: ir.Model, original: ir.Model, guard: Guard | None) -> ir.Model:
        shape = model.graph.inputs[0].shape
        if guard is not None and shape is not None and shape[2] == 3:
            raise fault
        return model

    executor = with_optimizer(refuse_small, compile=mode)
    for _ in range(4):
        run_any(executor, [rows(3)], times=1)
        executor.wait()
    state = executor.debug_state()
    assert state.compiled == 0 and not state.compiling and state.depth == 11  # not tried again
    assert [str(fault) in failure for failure in state.failures] == [True]
    assert any("could be made" in reason for reason in state.reasons)
    for _ in range(3):
        run_any(executor, [rows(4)], times=1)
        executor.wait()
    assert executor.debug_state().hits("static-1") == 2


def test_interrupted_compilation_does_not_use_up_depth() -> None:
    interrupts = [KeyboardInterrupt()]

    def interrupted(model: ir.Model, original: ir.Model, guard: Guard | None) -> ir.Model:
        if guard is not None and interrupts:
            raise interrupts.pop()
        return model

    executor = with_optimizer(interrupted)
    run_any(executor, [rows(3)], times=1)
    with pytest.raises(KeyboardInterrupt):
        executor.run(rows(3))
    state = executor.debug_state()
    assert (state.depth, state.profiled, state.compiling, state.failures) == (12, 1, False, ())
    run_any(executor, [rows(3)], times=1)
    assert executor.debug_state().hits("static-1") == 1


def test_runs_specialized_by_another_thread_meanwhile_are_not_profiled() -> None:
    executor = compiled(parse(ANY))
    executor.run(Interrupted(rows(3), lambda: run_any(executor, [rows(3)], times=2)))
    state = executor.debug_state()
    assert state.hits("static-1") == 1 and state.profiled == 0


def test_only_the_first_runs_per_reason_are_compared_with_guards() -> None:
    executor = compiled(parse(ANY), strategy=FusionStrategy.parse("static:1"))
    run_any(executor, [rows(3)], times=2)
    run_any(executor, map(rows, range(4, 60)), times=1)
    reasons = executor.debug_state().reasons
    plain = "all specializations are made"
    assert sum(count for why, count in reasons.items() if why.startswith(plain)) == 56
    assert reasons[f"{plain}: dim 2 of 'x' is 4, not 3"] == 1 and reasons[plain] > 30


# Looking in -----------------------------------------------------------------------------------


def test_graph_for_returns_the_current_plan() -> None:
    executor = compiled(parse(ANY))
    for _ in range(3):
        expected = executor.graph_for(rows(3))
        assert executor.graph_for(rows(3)) is expected  # without a specialization
        run_any(executor, [rows(3)], times=1)
    assert expected is executor.last_executed_optimized_graph()
    with optimized_execution(False):
        expected = executor.graph_for(rows(3))
        run_any(executor, [rows(3)], times=1)
        assert expected is executor.last_executed_optimized_graph()
    assert executor.debug_state().hits("fallback") == 1


# Strategies -----------------------------------------------------------------------------------


def test_new_strategy_applies_to_new_and_flushed_executors() -> None:
    old = compiled(parse(ANY))
    before = set_fusion_strategy("dynamic:1")
    try:
        new = compiled(parse(ANY))
        assert before == FusionStrategy()
        assert (old.debug_state().depth, new.debug_state().depth) == (12, 1)
        old.flush()
        assert old.debug_state().strategy == "dynamic:1"
        run_any(old, [any_feeds((1, 2, 3), (2, 3))])
        assert [plan.name for plan in old.debug_state().plans] == ["dynamic-1", "general"]
    finally:
        assert set_fusion_strategy(before) == FusionStrategy.parse("dynamic:1")


def test_depth_beyond_the_strategy_warns_and_is_static() -> None:
    with pytest.warns(UserWarning, match="depth 2 exceeds the 1 specializations"):
        executor = compiled(parse(ANY), strategy=FusionStrategy.parse("dynamic:1"), depth=2)
    run_any(executor, (any_feeds((1, 1, length), (1, 1)) for length in (2, 3)))
    assert [plan.name for plan in executor.debug_state().plans] == ["static-1", "dynamic-1", "general"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert compiled(parse(ANY), depth=0).debug_state().depth == 0


# Bad inputs ---------------------------------------------------------------------------------


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
def test_bad_inputs_use_up_at_most_one_specialization(runs: int, feeds: dict[str, Any]) -> None:
    executor = compiled(parse(ANY), profiled_runs=runs)
    for _ in range(3):
        with pytest.raises((UsageError, RuntimeFailure)):
            executor.run(feeds)
    assert executor.debug_state().depth >= 11
    run_any(executor, [any_feeds((1, 2, 3), (2, 3))])
    assert executor.debug_state().hits("static-2") + executor.debug_state().hits("static-1") >= 2


@pytest.mark.parametrize("depth", [-1])
def test_invalid_depth_is_rejected(depth: int) -> None:
    with pytest.raises(UsageError, match="depth must be an integer of at least 0"):
        ExecutorOptions(depth=depth)
    with pytest.raises(UsageError, match="inputs must be a dict"):
        compiled(parse(ANY))([1, 2])


def test_declared_sizes_are_required() -> None:
    model = parse("g (float[N, 3] x, float[M] y) => (float[N, 3] a, float[M] b) { a = Neg(x) b = Neg(y) }")
    executor = compiled(model, strategy=FusionStrategy.parse("dynamic:2"))
    good = {"x": np.ones((3, 3), np.float32), "y": np.ones(3, np.float32)}
    for _ in range(3):
        assert executor.run(good)["b"].tolist() == [-1, -1, -1]
    bad = {"x": np.ones((1, 1), np.float32), "y": np.ones(1, np.float32)}
    with pytest.raises(RuntimeFailure, match="Expected: 3"):
        executor.run(bad)
    unwatched = compiled(model, profiled_runs=0)
    with pytest.raises(RuntimeFailure, match="Expected: 3"):
        unwatched.run(bad)
    state = unwatched.debug_state()
    assert state.reasons == {"'x' does not have the declared shape": 1} and state.depth == 12


@pytest.mark.parametrize("compile", ["blocking", "background"])
def test_inputs_that_the_model_rejects_use_up_no_specialization(compile: str) -> None:
    model = parse(
        "g (float[N] x, float[M] z, seq(float) s) => (float[L] y, int64 n) { y = Add(x, z) n = SequenceLength(s) }"
    )
    executor = compiled(model, profiled_runs=0, strategy=FusionStrategy.parse("static:1"), compile=compile)
    two, three = np.ones(2, np.float32), np.ones(3, np.float32)
    good = {"x": three, "z": three, "s": [three]}
    for bad in ({"x": two}, {"x": three.astype(np.int32)}, {"s": [np.ones(1, np.int64)]}, {"s": three}):
        with pytest.raises(GraphoptError):
            executor.run({**good, **bad})
        state = executor.debug_state()
        assert (state.depth, state.compiled, state.failures) == (1, 0, ())
    for _ in range(2):
        assert executor.run(good)["y"].tolist() == [2, 2, 2]
        executor.wait()
    assert executor.debug_state().hits("static-1") > 0


# Switches -------------------------------------------------------------------------------------


def test_original_runs_where_optimizing_is_off() -> None:
    executor = compiled()
    feeds = feeds_of(1, 8)
    with optimized_execution(False):
        np.testing.assert_allclose(executor.run(feeds)["y"], _expected(feeds), rtol=1e-5)
        assert executor.debug_state().hits("fallback") == 1
    with pytest.raises(ZeroDivisionError), optimized_execution(False):
        _ = 1 / 0
    executor.run(feeds)
    assert executor.debug_state().hits("general") == 1


@pytest.mark.parametrize(("name", "ops"), [("none", "Erf"), ("ort", "Erf"), ("builtin", "Gelu")])
def test_fuser_selects_the_optimizer(name: str, ops: str) -> None:
    model = parse("""g (float[N, 64] x) => (float[N, 64] y) <float r = {1.4142135}, float one = {1}, float h = {0.5}> {
        a = Div(x, r) b = Erf(a) c = Add(b, one) d = Mul(x, c) y = Mul(d, h) }""")
    with fuser(name):
        executor = api.compile(model, verify=False)
    executor.run({"x": np.ones((2, 64), np.float32)})
    assert ops in {node.op_type for node in executor.last_executed_optimized_graph().graph}


def test_unknown_fuser_is_rejected() -> None:
    with pytest.raises(UsageError, match="no fuser is called"), fuser("fuser1"):
        pass


# Nested tensors, and others' ------------------------------------------------------------------


def test_nested_inputs_and_outputs() -> None:
    executor = api.compile(
        parse(ANY), inputs={"tensors": ["x", ("z",)]}, outputs=[{"sum": "y"}], pipeline="O2", verify=False
    )
    feeds = any_feeds((1, 2, 3), (2, 3))
    for _ in range(3):
        [found] = executor({"tensors": [feeds["x"], (feeds["z"],)]})
        assert found["sum"][0, 0, 0] == 2 + 6
    with pytest.raises(UsageError, match=r"inputs\['tensors'\] is not a list of 2"):
        executor({"tensors": [feeds["x"]]})
    with pytest.raises(UsageError, match="has no key 'other'"):
        executor({"other": 1})


@pytest.mark.parametrize(
    ("arguments", "why"),
    [({"inputs": ["x", "q"]}, "no input is called 'q'"), ({"outputs": ["y", "y"]}, "duplicate output")],
)
def test_unknown_or_duplicate_names_are_rejected(arguments: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        api.compile(parse(ANY), **arguments)


class _Foreign:
    """A tensor of another library."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **arguments: Any) -> Any:
        return self.array.__dlpack__(**arguments)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


def test_dlpack_tensors_are_not_copied() -> None:
    from graphopt.executor.pytree import as_array

    array = np.ones((1, 2, 3), np.float32)
    assert np.shares_memory(as_array(_Foreign(array)), array)
    executor = compiled(parse(ANY))
    assert executor({"x": _Foreign(array), "z": np.zeros((2, 3), np.float32)})["y"].sum() == 6


def test_donated_inputs_are_freed() -> None:
    executor = compiled(parse(ANY))
    for _ in range(3):
        feeds = any_feeds((1, 2, 3), (2, 3))
        expected = executor.run(feeds)["y"]
        array = weakref.ref(feeds["x"])
        assert executor.run(feeds)["y"].tolist() == expected.tolist() and len(feeds) == 2
        assert executor.run(feeds, donate=True)["y"].tolist() == expected.tolist()
        assert feeds == {} and array() is None
    assert executor.debug_state().hits("static-1") > 0
    with pytest.raises(UsageError, match="must be a dict, not a mappingproxy"):
        executor.run(MappingProxyType(feeds), donate=True)


def test_ort_values_stay_on_the_device() -> None:
    import onnxruntime

    executor = compiled(parse(ANY))
    for length in (3, 3, 3, 4):
        feeds = any_feeds((1, 2, length), (2, length))
        values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in feeds.items()}
        found = executor.run_bound(values)["y"]
        assert isinstance(found, onnxruntime.OrtValue)
        np.testing.assert_array_equal(found.numpy(), feeds["x"] + np.float32(2 * length))
    assert executor.debug_state().hits("static-1") == 2


def test_missing_and_unknown_inputs_are_reported() -> None:
    executor = compiled(parse(ANY))
    feeds = any_feeds((1, 2, 3), (2, 3))
    bad: list[Callable[[], object]] = [
        lambda: executor.run({"x": feeds["x"]}),
        lambda: executor.run({**feeds, "other": feeds["x"]}),
    ]
    run_any(executor, [feeds])
    for call in bad:
        with pytest.raises(UsageError):
            call()
    run_any(executor, [feeds])
    assert executor.graph_for(feeds) is executor.last_executed_optimized_graph()


@pytest.mark.parametrize(
    "options",
    [
        {"strategy": "quick"}, {"strategy": 5}, {"release": "yes"}, {"requires_grad": "x"}, {"profiled_runs": None}, {"profiled_runs": "1"}, {"most_plans": 1.5},
        {"delay": float("nan")}, {"depth": True}, {"compile": "later"},
    ],
)  # fmt: skip
def test_options_of_wrong_types_are_rejected(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        ExecutorOptions(**options)


def test_arguments_are_checked_first() -> None:
    with pytest.raises(TypeError, match="verfy"):
        api.compile(parse(ANY), verfy=True)
    with pytest.raises(UsageError, match="O33"):
        api.compile(parse(ANY), pipeline="O33")
    with pytest.raises(UsageError, match="not in a NoneType"):
        api.compile(parse(ANY), inputs=["x", None])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="strategy of set_fusion_strategy"):
        set_fusion_strategy(5)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="not an OrtValue"):
        api.compile(parse(ANY), verify=False).run_bound({"x": np.ones(1)})  # type: ignore[dict-item]


def test_outputs_as_a_named_tuple() -> None:
    from collections import namedtuple

    found = namedtuple("found", ["total"])("y")
    executor = api.compile(parse(ANY), outputs=found, pipeline="O2", verify=False)
    assert executor(any_feeds((1, 1, 2), (1, 2))).total.shape == (1, 1, 2)


# Plans that fail verification -----------------------------------------------------------------

_RELU = "g (float[N, 4] x) => (float[N, 4] y) { h = Relu(x) y = Neg(h) }"


@dataclass(frozen=True)
class WrongWhereSizesAreKnown(ReluToSigmoid):
    """A pass that breaks models without dynamic dims."""

    def run(self, model: ir.Model, cx: Context) -> None:
        shape = model.graph.inputs[0].shape
        if shape is not None and shape.is_static():
            super().run(model, cx)


def _with_pass(broken: Pass, **arguments: Any) -> Executor:
    options = ExecutorOptions(wait=None)
    return api.compile(parse(_RELU), options, pipeline="O2", post_passes=[broken], **arguments)


def test_wrong_general_plan_is_replaced_by_the_original() -> None:
    executor = _with_pass(ReluToSigmoid())
    found = executor.run({"x": -np.ones((2, 4), np.float32)})["y"]
    np.testing.assert_array_equal(found, 0)
    state = executor.debug_state()
    assert [remark.partition(":")[0] for remark in state.remarks] == ["the general plan runs the original"]
    assert {node.op_type for node in executor.last_executed_optimized_graph().graph} == {"Relu", "Neg"}


def test_wrong_general_plan_is_an_error_with_strict() -> None:
    with pytest.raises(VerificationFailed, match="not the same"):
        _with_pass(ReluToSigmoid(), strict=True).run({"x": -np.ones((2, 4), np.float32)})


def test_wrong_specialization_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "graphopt.debug.drop_faulty_rewrites.repair", lambda *_, **__: pytest.fail("searched")
    )
    executor = _with_pass(WrongWhereSizesAreKnown())
    for _ in range(3):
        np.testing.assert_array_equal(executor.run({"x": -np.ones((2, 4), np.float32)})["y"], 0)
    state = executor.debug_state()
    assert state.hits("general") == 3 and state.compiled == 0 and not state.remarks
    assert len(state.failures) == 1 and "not the same" in state.failures[0]


def test_pre_passes_run_first_in_each_plan() -> None:
    ran: list[int] = []

    @dataclass(frozen=True)
    class Counting(Pass):
        """Count runs."""

        name = "counting"

        def run(self, model: ir.Model, cx: Context) -> None:
            ran.append(len(model.graph))

    options = ExecutorOptions(profiled_runs=1, wait=None)
    made = api.compile(positions(), options, pre_passes=[Counting()], verify=False)
    for _ in range(3):
        made(feeds_of(2, 5))
    assert len(ran) >= 2, "the general plan, and one that is specialized"
    with pytest.raises(UsageError, match="no-such-pass"):
        api.compile(positions(), pre_passes=["no-such-pass"])


def test_executor_is_not_picklable() -> None:
    made = api.compile(positions(), verify=False)
    for copied in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(UsageError, match="an executor can't be pickled"):
            copied(made)
