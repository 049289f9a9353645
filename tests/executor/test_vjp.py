"""Vector-Jacobian products of an executor."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt import ir
from graphopt.autodiff.joint_graph import differentiate
from graphopt.autodiff.rule_registry import NoGradient
from graphopt.errors import ResourceLimit, UsageError
from graphopt.executor.executor import Executor
from graphopt.executor.vjp import Pullback
from tests.autodiff.models import run
from tests.model_testing import parse

MODEL = """m (float[N,3] x, float[3] b) => (float[N,2] y, float[N,3] z) <float[3,2] w = {1, 2, 3, 4, 5, 6}> {
    h = Exp(x) y = MatMul(h, w) s = Sub(b, h) z = Mul(s, x) }"""
RANDOM = np.random.default_rng(0)


def numbers(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def executor(**options: Any) -> Executor:
    return graphopt.compile(parse(MODEL), graphopt.ExecutorOptions(**options), threads=1, verify=False)


def truth(
    feeds: dict[str, np.ndarray], given: dict[str, np.ndarray], wanted: list[str]
) -> dict[str, np.ndarray]:
    joint = differentiate(parse(MODEL), list(given), wanted)
    cotangents = {joint.cotangents[name]: value for name, value in given.items()}
    found = run(joint.model, feeds | cotangents)
    return {name: found[output] for name, output in joint.gradients.items()}


@pytest.fixture(params=[False, True], ids=["whole", "by group"])
def by_group(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.mark.parametrize("wanted", [["x"], ["w"], ["b", "w", "x"]])
def test_gradients_equal_those_of_the_joint_graph_for_all_shapes(wanted: list[str], by_group: bool) -> None:
    trained = executor(by_group=by_group)
    for rows in (4, 4, 2, 4, 1, 0, 5):
        feeds = {"x": numbers(rows, 3), "b": numbers(3)}
        outputs, pullback = trained.vjp(feeds, wanted)
        assert all(np.allclose(outputs[name], value) for name, value in run(parse(MODEL), feeds).items())
        given = {"y": numbers(rows, 2), "z": numbers(rows, 3)}
        found = pullback(given, retain=True)
        assert list(found) == sorted(wanted)
        for name, value in truth(feeds, given, wanted).items():
            assert np.allclose(found[name], value, atol=1e-5), name
    assert len(trained._gradients) == 1


def test_each_set_of_absent_cotangents_has_a_backward_model(by_group: bool) -> None:
    trained = executor(by_group=by_group)
    feeds = {"x": numbers(4, 3), "b": numbers(3)}
    dy, dz = numbers(4, 2), numbers(4, 3)
    outputs, pullback = trained.vjp(feeds, ["x", "b", "w"])
    assert str(trained.debug_state().gradients[0]) == "gradients by b, w, x: no backward run"
    zeros = {"y": np.zeros_like(outputs["y"]), "z": np.zeros_like(outputs["z"])}
    for given in ({"z": dz}, {"z": dz}, {"y": dy, "z": dz}, {"z": dz, "y": None}, {}):
        found = pullback(given, retain=True)
        known = {name: value for name, value in given.items() if value is not None}
        for name, value in truth(feeds, zeros | known, ["x", "b", "w"]).items():
            assert np.allclose(found[name], value, atol=1e-5), (name, given)
    state = trained.debug_state()
    assert dict(state.gradients[0].runs) == {("y",): 3, (): 1, ("y", "z"): 1}
    assert "gradients by b, w, x: 3 runs without cotangents of y; 1 run with all cotangents; 1 run" in str(
        state
    )
    assert state.to_dict()["gradients"] == [vars(state.gradients[0])]
    special = pullback.plan._specialized["y",]
    assert special is not None and [
        port.name for port in special.signature.inputs if "cotangent" in port.name
    ] == ["cotangent.z"]


def test_absent_cotangents_are_zero_where_a_slope_is_infinite(by_group: bool) -> None:
    model = parse("g (float[N] x) => (float[N] y, float[N] z) { y = Sqrt(x) z = Mul(x, x) }")
    options = graphopt.ExecutorOptions(by_group=by_group, release=True, delay=0.0)
    _, pullback = graphopt.compile(model, options, verify=False).vjp({"x": np.zeros(2, np.float32)}, ["x"])
    for _ in range(3):
        assert pullback({"z": numbers(2)}, retain=True)["x"].tolist() == [0, 0]
    assert np.isinf(pullback({"y": np.ones(2, np.float32)}, retain=True)["x"]).all()
    assert pullback({})["x"].tolist() == [0, 0]


def test_a_full_disk_does_not_prevent_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise UsageError("no space left")

    monkeypatch.setattr("graphopt.publish.ScratchFolder", fail)
    outputs, pullback = executor(release=True).vjp({"x": numbers(4, 3), "b": numbers(3)}, ["x"])
    assert pullback({"y": outputs["y"]})["x"].shape == (4, 3)


def test_the_number_of_backward_models_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphopt.executor.vjp._MOST", 1)
    outputs, pullback = executor().vjp({"x": numbers(4, 3), "b": numbers(3)}, ["x"])
    first = pullback({"y": outputs["y"]}, retain=True)["x"]
    pullback({"z": outputs["z"]}, retain=True)
    assert list(pullback.plan._specialized) == [("y",)]
    np.testing.assert_array_equal(pullback({"y": outputs["y"]}, retain=True)["x"], first)
    assert list(pullback.plan._specialized) == [("z",)]


def test_unknown_names_of_requires_grad_are_refused() -> None:
    with pytest.raises(UsageError, match="no input or initializer is called 'nope'"):
        executor(requires_grad=("x", "nope"))
    assert executor(requires_grad=("x", "w")).vjp({"x": numbers(2, 3), "b": numbers(3)})[0]


def test_backward_model_is_specialized_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    _, pullback = executor().vjp({"x": numbers(4, 3), "b": numbers(3)}, ["x"])
    dz = {"z": numbers(4, 3)}

    def fail(model: ir.Model, graph: str) -> None:
        raise ResourceLimit("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(pullback.plan, "_start", fail)
        with pytest.raises(ResourceLimit):
            pullback(dz, retain=True)
    pullback(dz)
    assert list(pullback.plan._specialized) == [("y",)]


def test_requested_gradients_are_the_key_of_a_plan() -> None:
    trained = executor(requires_grad=("x",))
    feeds = {"x": numbers(2, 3), "b": numbers(3)}
    for wanted in (None, ["x"], ["x", "b"], ["b", "x"]):
        trained.vjp(feeds, wanted)
    assert list(trained._gradients) == [("x",), ("b", "x")]
    trained.flush()
    assert not trained._gradients


def test_errors_are_reported() -> None:
    trained = executor()
    feeds = {"x": numbers(2, 3), "b": numbers(3)}
    with pytest.raises(UsageError, match="no gradient is requested"):
        trained.vjp(feeds)
    with pytest.raises(UsageError, match="'v'"):
        trained.vjp(feeds, ["v"])
    _, pullback = trained.vjp(feeds, ["x"])
    with pytest.raises(UsageError, match="a dict of arrays"):
        pullback([numbers(2, 2)])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="a dict of arrays"):
        trained.vjp([numbers(2, 3)], "x")  # type: ignore[arg-type]
    for gradients in ({"q": numbers(1)}, {"y": numbers(2, 3)}, {"y": np.zeros((2, 2))}):
        with pytest.raises(UsageError, match=r"output|gradient of 'y'"):
            pullback(gradients)


def test_gradients_that_do_not_depend_on_the_given_cotangents() -> None:
    model = parse("m (float[N] x, float[N] q) => (float[N] y, float[N] p) { y = Mul(x, x) p = Exp(q) }")
    trained = graphopt.compile(model, threads=1, verify=False)
    _, pullback = trained.vjp({"x": numbers(3), "q": numbers(3)}, ["x"])
    for given in ({"p": numbers(3)}, {"p": numbers(3)}, {}, {"p": numbers(3)}):
        assert pullback(given, retain=True)["x"].tolist() == [0, 0, 0]
    assert pullback({"y": numbers(3)})["x"].any()


def test_arrays_may_be_modified_before_the_backward_run() -> None:
    trained = graphopt.compile(
        parse("m (float[N] x) => (float[N] y) { y = Exp(x) }"), threads=1, verify=False
    )
    x = numbers(3)
    expected = np.exp(x)
    outputs, pullback = trained.vjp({"x": x}, ["x"])
    outputs["y"] -= outputs["y"]
    del outputs["y"]
    x[:] = 0
    assert np.allclose(pullback({"y": np.ones(3, np.float32)})["x"], expected)


def _of_exp(by_group: bool = False) -> tuple[graphopt.Executor, Pullback]:
    trained = graphopt.compile(
        parse("m (float[N] x) => (float[N] y) { t = Sin(x) u = Exp(t) y = Mul(u, t) }"),
        graphopt.ExecutorOptions(by_group=by_group),
        threads=1,
        verify=False,
    )
    return trained, trained.vjp({"x": numbers(3)}, ["x"])[1]


def test_pullback_frees_its_residuals_after_use(by_group: bool) -> None:
    _, pullback = _of_exp(by_group)
    assert pullback._run is not None and pullback._run.saved
    saved = [weakref.ref(value) for value in pullback._run.saved.values()]
    given = {"y": np.ones(3, np.float32)}
    kept = pullback(given, retain=True)["x"]
    with pytest.raises(UsageError):
        pullback({"other": given["y"]})
    assert all(value() is not None for value in saved)
    np.testing.assert_array_equal(pullback(given)["x"], kept)
    assert all(value() is None for value in saved)
    with pytest.raises(UsageError, match="were freed by its last call") as error:
        pullback(given)
    assert "retain=True" in str(error.value.hint)


def test_last_call_of_a_pullback_does_not_free_the_residuals_of_a_call_in_progress(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, pullback = _of_exp()
    dy, plan = np.ones(3, np.float32), pullback.plan
    begun, goes_on, backward = threading.Event(), threading.Event(), plan.backward
    found: list[Any] = []

    def slow(run: Any, given: Mapping[str, np.ndarray], *, retain: bool) -> dict[str, np.ndarray]:
        if retain:
            begun.set()
            goes_on.wait(60)
        return backward(run, given, retain=retain)

    monkeypatch.setattr(plan, "backward", slow)
    thread = threading.Thread(target=lambda: found.append(pullback({"y": dy}, retain=True)))
    thread.start()
    assert begun.wait(60)
    last = pullback({"y": dy})
    goes_on.set()
    thread.join(60)
    assert np.array_equal(found[0]["x"], last["x"])
    with pytest.raises(UsageError, match="were freed by its last call"):
        pullback({"y": dy})


def test_an_operator_without_gradient_matters_only_on_the_path_of_a_cotangent(by_group: bool) -> None:
    text = """m (float[N] x) => (float[N] y, float[N] z) <float w = {2}> {
        h = Mul(x, w) y = Exp(h) z = com.microsoft.SampleOp(h) }"""
    domains = ', "com.microsoft" : 1'
    options = graphopt.ExecutorOptions(by_group=by_group)
    executor = graphopt.compile(parse(text, domains=domains), options, threads=1, verify=False)
    feeds = {"x": numbers(4)}
    for _ in range(3):
        outputs, pullback = executor.vjp(feeds, ["w", "x"])
        assert np.allclose(outputs["z"], 2 * feeds["x"])
        gradients = pullback({"y": np.ones(4, np.float32), "z": None}, retain=True)
        assert np.allclose(gradients["x"], 2 * np.exp(2 * feeds["x"]), rtol=1e-5)
        assert np.allclose(gradients["w"], np.sum(feeds["x"] * np.exp(2 * feeds["x"])), rtol=1e-5)
        with pytest.raises(NoGradient, match="SampleOp"):
            pullback({"z": outputs["z"]})
    alone = graphopt.compile(parse(text.replace("float[N] y, ", ""), domains=domains), options, verify=False)
    with pytest.raises(NoGradient, match="SampleOp"):
        alone.vjp(feeds, ["x"])
