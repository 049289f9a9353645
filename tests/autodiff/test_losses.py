"""Loss functions added to models."""

from __future__ import annotations

import numpy as np
import pytest

import graphopt
from graphopt import ir
from graphopt.autodiff.joint_graph import differentiate
from graphopt.autodiff.losses import Loss
from graphopt.errors import UsageError
from tests.autodiff.models import check, run
from tests.model_testing import ops, parse

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
    joint = graphopt.differentiate(model, f"cross_entropy:y,labels,axis={axis}", ["x"])
    shape = tuple(np.delete(LOGITS.shape, axis))
    labels = np.random.default_rng(1).integers(0, LOGITS.shape[axis], shape)
    found = run(joint.model, {"x": LOGITS, "labels": labels})
    loss, gradient = cross_entropy(np.moveaxis(LOGITS, axis, -1), labels)
    assert np.allclose(found["loss"], loss, atol=1e-6)
    assert np.allclose(found["grad.x"], np.moveaxis(gradient, -1, axis), atol=1e-6)


def test_mean_squared_error_with_new_input_and_existing_value() -> None:
    model = parse("m (float[A,3] x) => (float[A,3] y) { y = Mul(x, x) }")
    joint = graphopt.differentiate(model, "mse:y,t", "inputs")
    assert joint.gradients == {"x": "grad.x"}
    x, t = LOGITS[0, :, :3], LOGITS[1, :, :3]
    found = run(joint.model, {"x": x, "t": t})
    assert np.allclose(found["loss"], np.mean((x * x - t) ** 2), atol=1e-6)
    assert np.allclose(found["grad.x"], 4 * x * (x * x - t) / x.size, atol=1e-5)
    own = graphopt.differentiate(model, "mse:y,x", "inputs")
    assert np.allclose(run(own.model, {"x": x})["grad.x"], 2 * (x * x - x) * (2 * x - 1) / x.size, atol=1e-5)


@pytest.mark.parametrize("ignored", [None, 1, -100, -1, 255])
@pytest.mark.parametrize("scores", ["float", "double"])
@pytest.mark.parametrize("labels", ["int32", "int64"])
def test_element_types_of_scores_and_labels(scores: str, labels: str, ignored: int | None) -> None:
    attribute = "" if ignored is None else f"<ignore_index={ignored}>"
    text = f"""m ({scores}[N,3] x, {labels}[N] t) => ({scores} loss)
        {{ loss = SoftmaxCrossEntropyLoss{attribute}(x, t) }}"""
    joint = graphopt.differentiate(parse(text), "loss", ["x"])
    x, rows = LOGITS.transpose(0, 2, 1).reshape(10, 3), np.arange(10) % 3
    counted = np.ones(10, bool)
    if ignored is not None:
        rows[::4] = ignored
        counted = rows != ignored
    feeds = {"x": x.astype(np.float32 if scores == "float" else np.float64), "t": rows.astype(labels)}
    truth = np.zeros((10, 3))
    truth[counted] = cross_entropy(x[counted], rows[counted])[1]
    assert np.allclose(run(joint.model, feeds)["grad.x"], truth, atol=1e-6)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_class_weights_with_ignored_labels(reduction: str) -> None:
    text = f"""m (double[N,3] x, int64[N] t, double[3] w) => (double{"[N]" if reduction == "none" else ""} y)
        {{ y = SoftmaxCrossEntropyLoss<reduction="{reduction}", ignore_index=1>(x, t, w) }}"""
    feeds = {"x": LOGITS[0].T.astype(np.float64), "t": np.array([0, 1, 2, 1, 0]), "w": np.array([0.5, 2, 3])}
    check(text, feeds)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_all_labels_ignored(reduction: str) -> None:
    text = f"""m (float[N,3] x, int64[N] t, float[3] w) => (float{"[N]" if reduction == "none" else ""} y)
        {{ y = NegativeLogLikelihoodLoss<reduction="{reduction}">(x, t, w) }}"""
    joint = differentiate(parse(text), ["y"], ["x", "w"])
    given = np.ones(0 if reduction == "none" else (), np.float32)
    feeds = {"x": np.zeros((0, 3), np.float32), "t": np.zeros(0, np.int64), "w": np.ones(3, np.float32)}
    found = run(joint.model, feeds | {"cotangent.y": given})
    assert found["grad.x"].shape == (0, 3) and found["grad.w"].tolist() == [0, 0, 0]


def count(model: ir.Model) -> int:
    """The nodes of ``model``, but for constants."""
    return len([op for op in ops(model) if op != "Constant"])


def test_network_has_few_nodes() -> None:
    model = parse("""m (float[B,16] x, float[16,32] w, float[32] b, float[32,4] v, float[4] c) => (float[B,4] y)
        { h = Gemm(x, w, b) r = Relu(h) y = Gemm(r, v, c) }""")
    joint = graphopt.differentiate(model, "cross_entropy:y,labels", ["w", "b", "v", "c"])
    assert count(joint.model) <= 17


#: GELU as exporters write it, before there is an operator and since.
GELUS = {
    18: """d = Constant<value = float {1.4142135}>() o = Constant<value = float {1}>() q = Div(n, d) e = Erf(q)
        a = Add(e, o) m = Mul(n, a) f = Constant<value = float {0.5}>() k = Mul(m, f)""",
    20: "k = Gelu(n)",
}


@pytest.mark.parametrize("loss", ["cross_entropy:y,labels,axis=-1", "mse:y,t"])
@pytest.mark.parametrize(("opset", "most"), [(18, 44), (20, 42)])
def test_layers_with_normalization_have_few_nodes(opset: int, most: int, loss: str) -> None:
    parameters = "float[32] b, float[32] g, float[32] h, float[4] c"
    rows = f"""m (float[B,16] x, float[32,16] w, float[4,32] v, {parameters}) => (float[B,4] y) {{
        i = Gemm<transB=1>(x, w, b) n = LayerNormalization(i, g, h) {GELUS[opset]} y = Gemm<transB=1>(k, v, c) }}"""
    wrt = ["w", "b", "g", "h", "v", "c"]
    assert count(graphopt.differentiate(parse(rows, opset=opset), loss, wrt).model) <= most
    places = f"""m (float[B,9,16] x, float[16,32] w, float[32,4] v, {parameters}) => (float[B,9,4] y) {{
        j = MatMul(x, w) i = Add(j, b) n = LayerNormalization(i, g, h) {GELUS[opset]} z = MatMul(k, v) y = Add(z, c) }}"""
    assert count(graphopt.differentiate(parse(places, opset=opset), loss, wrt).model) <= most + 9


def test_attention_has_few_nodes() -> None:
    model = parse("""m (float[B,H,S,8] q, float[B,H,S,8] k, float[B,H,S,8] v) => (float[B,H,S,8] o) {
        scale = Constant<value = float {0.35355339}>() d = Transpose<perm = [0, 1, 3, 2]>(k) s = MatMul(q, d)
        t = Mul(s, scale) p = Softmax<axis = -1>(t) o = MatMul(p, v) }""")
    joint = graphopt.differentiate(model, "mse:o,target", "inputs")
    assert count(joint.model) <= 25


def test_mean_squared_error_of_different_shapes_is_refused() -> None:
    model = parse("m (float[2,3] x, float[3] t) => (float[2,3] y) { y = Exp(x) }")
    with pytest.raises(UsageError, match="mse needs equal shapes"):
        graphopt.differentiate(model, "mse:y,t", ["x"])


def test_class_axis_is_required_for_more_than_two_axes() -> None:
    model = parse("m (float[A,B,C] x) => (float[A,B,C] y) { y = Identity(x) }")
    with pytest.raises(UsageError, match="the class axis is not given") as told:
        graphopt.differentiate(model, "cross_entropy:y,labels", ["x"])
    assert "cross_entropy:y,labels,axis=-1" in str(told.value.hint)
    assert graphopt.differentiate(model, "cross_entropy:y,labels,axis=-1", ["x"]).target == "labels"


def test_ignored_label() -> None:
    model = parse("m (float[A,C] x) => (float[A,C] y) { y = Identity(x) }")
    joint = graphopt.differentiate(model, "cross_entropy:y,labels,ignore_index=-100", ["x"])
    labels = np.array([1, -100, 4])
    found = run(joint.model, {"x": LOGITS[0], "labels": labels})
    loss, gradient = cross_entropy(LOGITS[0][[0, 2]], labels[[0, 2]])
    assert np.allclose(found["loss"], loss, atol=1e-6)
    assert np.allclose(found["grad.x"], np.insert(gradient, 1, 0, axis=0), atol=1e-6)


def test_labels_are_integers() -> None:
    model = parse("m (float[A,C] x, float[A] t) => (float[A,C] y) { y = Identity(x) }")
    with pytest.raises(UsageError, match="'t' is float, and labels must be int32 or int64"):
        graphopt.differentiate(model, "cross_entropy:y,t", ["x"])


def test_invalid_losses_are_refused() -> None:
    for text in ("cross_entropy:a,b,axis=-1", "cross_entropy:a,b,axis=1,ignore_index=-100", "mse:a,b"):
        assert str(Loss.parse(text)) == text
    for text in (
        "hinge:a,b",
        "mse:a",
        "mse:a,b,c",
        "mse:a,b,axis=1",
        "cross_entropy:a,b,axis=x",
        "cross_entropy:a,b,axes=1",
    ):
        with pytest.raises(UsageError):
            Loss.parse(text)


def test_value_with_the_name_of_a_loss_function() -> None:
    model = parse("m (float x) => (float loss) { loss = Exp(x) }")
    model.graph.outputs[0].name = "mse:a,b"
    assert graphopt.differentiate(model, "mse:a,b", ["x"]).loss == "mse:a,b"
