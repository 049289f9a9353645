"""A loss and its gradients as a function."""

from __future__ import annotations

import numpy as np
import pytest

import graphopt
from graphopt.errors import UsageError
from tests.model_testing import parse

TEXT = "m (float[N,3] x) => (float[N,1] y) <float[3,1] w = {0, 0, 0}> { y = MatMul(x, w) }"


def test_gradient_descent_converges() -> None:
    f = graphopt.value_and_grad(parse(TEXT), "mse:y,target", threads=1)
    x = np.random.default_rng(0).standard_normal((32, 3)).astype(np.float32)
    truth = np.array([[1], [-2], [3]], np.float32)
    feeds = {"x": x, "target": x @ truth}
    first, gradients = f(feeds)
    assert np.allclose(gradients["w"], 2 * x.T @ (0 - x @ truth) / 32, atol=1e-5)
    for _ in range(200):
        _, gradients = f(feeds)
        f.parameters["w"] -= 0.1 * gradients["w"]
    assert first > 1 and np.allclose(f.parameters["w"], truth, atol=1e-3)


def test_parameters_can_be_fed() -> None:
    f = graphopt.value_and_grad(parse(TEXT), "mse:y,target", ["w", "x"])
    feeds = {"x": np.ones((1, 3), np.float32), "target": np.ones((1, 1), np.float32)}
    loss, gradients = f({**feeds, "w": np.ones((3, 1), np.float32)})
    assert loss == 4 and gradients["x"].tolist() == [[4, 4, 4]]
    assert f(feeds)[0] == 1
    with pytest.raises(UsageError, match="target"):
        f({"x": feeds["x"]})


def test_running_statistics_are_updated() -> None:
    model = parse("""m (float[N,2] x) => (float[N,2] y)
        <float[2] scale = {1, 1}, float[2] bias = {0, 0}, float[2] mean = {0, 0}, float[2] var = {1, 1}> {
        y = BatchNormalization<training_mode=1, momentum=0.5>(x, scale, bias, mean, var) }""")
    x = np.array([[1, 2], [3, 6]], np.float32)
    joint = graphopt.differentiate(model, "mse:y,target", outputs="loss")
    assert joint.state == {"mean": "state.mean", "var": "state.var"}
    assert [value.name for value in joint.model.graph.outputs] == [
        "loss", "grad.scale", "grad.bias", "state.mean", "state.var"
    ]  # fmt: skip
    f = graphopt.value_and_grad(model, "mse:y,target")
    feeds = {"x": x, "target": np.zeros((2, 2), np.float32)}
    f(feeds)
    assert f.state["mean"].tolist() == [1, 2] and f.state["var"].tolist() == [1, 2.5]
    f(feeds)
    assert f.state["mean"].tolist() == [1.5, 3] and sorted(f.parameters) == ["bias", "scale"]


def test_requested_outputs_and_wrong_types() -> None:
    f = graphopt.value_and_grad(parse(TEXT), "mse:y,target", outputs=["y"])
    feeds = {"x": np.ones((2, 3), np.float32), "target": np.ones((2, 1), np.float32)}
    f(feeds)
    assert f.outputs["y"].tolist() == [[0], [0]]
    with pytest.raises(UsageError, match="input 'x' expects float32, the array contains float64"):
        f({**feeds, "x": np.ones((2, 3))})
    with pytest.raises(UsageError, match="no output is called 'z'"):
        graphopt.value_and_grad(parse(TEXT), "mse:y,target", outputs=["z"])


def test_scalar_parameters_can_be_numpy_scalars() -> None:
    model = parse("m (float[N] x) => (float[N] y) <float a = {2}> { y = Mul(x, a) }")
    f = graphopt.value_and_grad(model, "mse:y,target", ["a"])
    feeds = {"x": np.ones(2, np.float32), "target": np.zeros(2, np.float32)}
    _, gradients = f(feeds)
    f.parameters["a"] = f.parameters["a"] - np.float32(0.25) * gradients["a"]
    assert f(feeds)[0] == 1
