"""A fuser fuses nodes of differentiated models, which then compute the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt import ir
from graphopt.errors import UsageError
from graphopt.ops.graphopt_operators import NATIVE_DOMAIN
from tests.fusion.backends.c.runtime.samples import compiled
from tests.model_testing import parse

LOSS = "mse:y,target"
RNG = np.random.default_rng(0)
FEEDS = {
    "x": RNG.standard_normal((2, 5, 4)).astype(np.float32),
    "target": RNG.standard_normal((2, 5, 4)).astype(np.float32),
}
FUSERS = ["builtin", pytest.param("native", marks=compiled)]


@pytest.fixture
def model() -> ir.Model:
    weights = ", ".join(map(str, RNG.standard_normal(16).round(2)))
    return parse(
        f"""g (float[N, T, 4] x) => (float[N, T, 4] y) <float[4, 4] w = {{{weights}}}, float half = {{0.5}}> {{
            q = MatMul(x, w)
            a = Sigmoid(q)
            k = Mul(q, a)
            t = Transpose<perm = [0, 2, 1]>(k)
            s = MatMul(q, t)
            d = Mul(s, half)
            p = Softmax<axis = -1>(d)
            y = MatMul(p, x)
        }}""",
        opset=18,
    )


def fused_ops(model: ir.Model) -> list[ir.Node]:
    return [node for node in model.graph if node.domain in (ir.MICROSOFT, NATIVE_DOMAIN)]


@pytest.mark.parametrize("fuser", FUSERS)
def test_training_steps_are_fused_and_train_the_same(model: ir.Model, fuser: str) -> None:
    plain = graphopt.train_step(model, LOSS, "adam")
    fused = graphopt.train_step(model, LOSS, "adam", fuser=fuser)
    assert fused_ops(fused.model) and not fused_ops(plain.model)
    assert len(fused.model.graph) < len(plain.model.graph)
    trainers = [graphopt.Trainer(step) for step in (plain, fused)]
    losses = [[trainer.step(FEEDS) for _ in range(5)] for trainer in trainers]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
    assert losses[0][-1] < losses[0][0]


@pytest.mark.parametrize("fuser", FUSERS)
def test_gradients_of_fused_graphs_are_equal(model: ir.Model, fuser: str) -> None:
    joint = graphopt.differentiate(model, LOSS, fuser=fuser)
    assert fused_ops(joint.model)
    f, g = (graphopt.value_and_grad(model, LOSS, **options) for options in ({}, {"fuser": fuser}))
    for parameters in (dict(f.parameters), {name: 2 * value for name, value in f.parameters.items()}):
        f.parameters.update(parameters)
        g.parameters.update(parameters)
        (loss, gradients), (other, others) = f(FEEDS), g(FEEDS)
        np.testing.assert_allclose(loss, other, rtol=1e-5)
        for name, gradient in gradients.items():
            np.testing.assert_allclose(gradient, others[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("fuser", FUSERS)
def test_both_halves_of_a_split_are_fused(model: ir.Model, fuser: str) -> None:
    plain, halves = graphopt.split(model, LOSS), graphopt.split(model, LOSS, fuser=fuser)
    assert len(halves.backward.graph) < len(plain.backward.graph)
    assert graphopt.verify_split(halves).ok


@pytest.mark.parametrize("fuser", FUSERS)
def test_fused_graphs_keep_equal_parameters_apart(fuser: str) -> None:
    """The contents of parameters may change, so they are neither merged nor folded."""
    model = parse(
        """g (float[N, 4] x) => (float[N, 2] y)
            <float[2, 4] w = {1, 2, 3, 4, 5, 6, 7, 8}, float[2, 4] v = {1, 2, 3, 4, 5, 6, 7, 8}> {
            wt = Transpose(w) vt = Transpose(v) a = MatMul(x, wt) s = Sigmoid(a) m = Mul(a, s) b = MatMul(x, vt)
            y = Mul(m, b)
        }""",
        opset=18,
    )
    joint = graphopt.differentiate(model, LOSS, fuser=fuser)
    lifted, parameters = graphopt.lift_parameters(joint.model)
    assert sorted(parameters.tensors) == ["v", "w"]
    other = {"w": np.ones((2, 4), np.float32), "v": np.full((2, 4), 0.5, np.float32)}
    x = FEEDS["x"][0]
    plain = graphopt.value_and_grad(model, LOSS)
    plain.parameters.update(other)
    target = np.zeros((5, 2), np.float32)
    _, expected = plain({"x": x, "target": target})
    changed, _ = graphopt.unlift_parameters(joint.model, other)
    for found in (lifted, changed):
        results = graphopt.run(found, {"x": x, "target": target} | (other if found is lifted else {}))
        for name, value in expected.items():
            np.testing.assert_allclose(results[joint.gradients[name]], value, rtol=1e-5)
    halves = graphopt.split(model, LOSS, fuser=fuser)
    assert {"w", "v"} <= set(halves.forward.graph.initializers)
    left = graphopt.optimize(joint.model, verify=False).model.graph.initializers  # constants again
    assert not {"w", "v"} <= set(left)


def test_the_fuser_of_a_compiler_applies(model: ir.Model) -> None:
    compiler = graphopt.Compiler(fuser="builtin")
    assert fused_ops(compiler.train_step(model, LOSS).model)
    assert not fused_ops(compiler.train_step(model, LOSS, fuser="ort").model)


def test_unknown_fusers_are_refused(model: ir.Model) -> None:
    calls: list[Any] = [graphopt.train_step, graphopt.differentiate, graphopt.split, graphopt.value_and_grad]
    for call in calls:
        with pytest.raises(UsageError, match="natve"):
            call(model, LOSS, fuser="natve")
