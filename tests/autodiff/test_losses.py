"""Loss functions that are written into models."""

from __future__ import annotations

import numpy as np
import pytest

import graphopt
from graphopt.autodiff.losses import Loss
from graphopt.errors import UsageError
from tests.autodiff.models import run
from tests.support import ops, parse

LOGITS = np.random.default_rng(0).standard_normal((2, 3, 5)).astype(np.float32)


def cross_entropy(logits: np.ndarray, labels: np.ndarray) -> tuple[float, np.ndarray]:
    """The mean loss over rows, and its gradient; classes are last."""
    flat, rows = logits.reshape(-1, logits.shape[-1]).astype(np.float64), labels.reshape(-1)
    soft = np.exp(flat) / np.exp(flat).sum(-1, keepdims=True)
    loss = -np.log(soft[np.arange(len(rows)), rows]).mean()
    soft[np.arange(len(rows)), rows] -= 1
    return loss, (soft / len(rows)).reshape(logits.shape)


@pytest.mark.parametrize("axis", [-1, 1, 0])
def test_cross_entropy_along_any_axis(axis: int) -> None:
    model = parse("m (float[A,B,C] x) => (float[A,B,C] y) { y = Identity(x) }")
    joint = graphopt.grad(model, f"cross_entropy:y,labels,axis={axis}", ["x"])
    shape = tuple(np.delete(LOGITS.shape, axis))
    labels = np.random.default_rng(1).integers(0, LOGITS.shape[axis], shape)
    found = run(joint.model, {"x": LOGITS, "labels": labels})
    loss, gradient = cross_entropy(np.moveaxis(LOGITS, axis, -1), labels)
    assert np.allclose(found["loss"], loss, atol=1e-6)
    assert np.allclose(found["grad.x"], np.moveaxis(gradient, -1, axis), atol=1e-6)


def test_mean_squared_error_against_an_input_and_against_a_value() -> None:
    model = parse("m (float[A,3] x) => (float[A,3] y) { y = Mul(x, x) }")
    joint = graphopt.grad(model, "mse:y,t", "inputs")
    assert joint.gradients == {"x": "grad.x"}
    x, t = LOGITS[0, :, :3], LOGITS[1, :, :3]
    found = run(joint.model, {"x": x, "t": t})
    assert np.allclose(found["loss"], np.mean((x * x - t) ** 2), atol=1e-6)
    assert np.allclose(found["grad.x"], 4 * x * (x * x - t) / x.size, atol=1e-5)
    own = graphopt.grad(model, "mse:y,x", "inputs")
    assert np.allclose(run(own.model, {"x": x})["grad.x"], 2 * (x * x - x) * (2 * x - 1) / x.size, atol=1e-5)


def test_a_network_takes_few_nodes() -> None:
    model = parse("""m (float[B,16] x, float[16,32] w, float[32] b, float[32,4] v, float[4] c) => (float[B,4] y)
        { h = Gemm(x, w, b) r = Relu(h) y = Gemm(r, v, c) }""")
    joint = graphopt.grad(model, "cross_entropy:y,labels", ["w", "b", "v", "c"])
    assert len(ops(joint.model)) <= 17


def test_attention_takes_few_nodes() -> None:
    model = parse("""m (float[B,H,S,8] q, float[B,H,S,8] k, float[B,H,S,8] v) => (float[B,H,S,8] o) {
        scale = Constant<value = float {0.35355339}>() d = Transpose<perm = [0, 1, 3, 2]>(k) s = MatMul(q, d)
        t = Mul(s, scale) p = Softmax<axis = -1>(t) o = MatMul(p, v) }""")
    joint = graphopt.grad(model, "mse:o,target", "inputs")
    assert len([op for op in ops(joint.model) if op != "Constant"]) <= 25


def test_a_mean_squared_error_of_other_shapes_is_refused() -> None:
    model = parse("m (float[2,3] x, float[3] t) => (float[2,3] y) { y = Exp(x) }")
    with pytest.raises(UsageError, match="no mse"):
        graphopt.grad(model, "mse:y,t", ["x"])


def test_what_is_no_loss_is_told() -> None:
    assert str(Loss.parse("cross_entropy:a,b,axis=-1")) == "cross_entropy:a,b,axis=-1"
    for text in ("hinge:a,b", "mse:a", "mse:a,b,c", "mse:a,b,axis=x"):
        with pytest.raises(UsageError):
            Loss.parse(text)


def test_a_value_may_be_called_like_a_loss_function() -> None:
    model = parse("m (float x) => (float loss) { loss = Exp(x) }")
    model.graph.outputs[0].name = "mse:a,b"
    assert graphopt.grad(model, "mse:a,b", ["x"]).loss == "mse:a,b"
