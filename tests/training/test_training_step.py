"""Training steps: inputs and outputs, clipping, accumulation, running statistics."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator

import graphopt
from graphopt import ir
from graphopt.autodiff.rule_registry import NoGradient
from graphopt.errors import UsageError
from graphopt.training.step_plan import KEY, Plan
from tests.model_testing import ops, parse
from tests.training.models import LINEAR, LOSS, batches, gradient, linear, step, trainer


def test_outputs_new_w_are_inputs_w() -> None:
    made = step("adam")
    state = ["adam.step", "adam.m.w", "adam.m.b", "adam.v.w", "adam.v.b"]
    assert [value.name for value in made.model.graph.inputs] == ["x", "t", "w", "b", *state, "learning_rate"]
    names = [value.name for value in made.model.graph.outputs]
    assert names == ["loss", "new.w", "new.b", *(f"new.{name}" for name in state)]
    assert made.plan.carried == list(made.initial) == ["w", "b", *state]
    assert made.initial["adam.step"].dtype == np.int64 and not made.initial["adam.m.w"].any()
    for value in made.model.graph.inputs[2:4]:
        new = next(output for output in made.model.graph.outputs if output.name == f"new.{value.name}")
        assert new.shape == value.shape and new.dtype == value.dtype


def test_training_with_plain_onnxruntime(tmp_path: Path) -> None:
    step("momentum", learning_rate=0.1).save(tmp_path / "step.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "step.onnx", providers=["CPUExecutionProvider"])
    plan = json.loads(session.get_modelmeta().custom_metadata_map[KEY])
    assert plan == json.loads((tmp_path / "step.training.json").read_text())
    tensors = graphopt.Trainer(tmp_path / "step.onnx", device="cpu").carried()
    for feeds in batches(20):
        feeds = {**feeds, **tensors, "learning_rate": np.array(plan["learning_rate"], np.float32)}
        loss, *new = session.run([plan["loss"], *plan["next"].values()], feeds)
        tensors = dict(zip(plan["next"], new, strict=True))
    ours = trainer("momentum", learning_rate=0.1)
    assert ours.fit(batches(20))[-1] == pytest.approx(float(loss), rel=1e-5)


@pytest.mark.parametrize(
    ("path", "state"), [("step.onnx", "state.bin"), ("step.onnx", "gone/w.npz"), ("gone/step.onnx", "w.npz")]
)
def test_all_files_are_written_or_none(tmp_path: Path, path: str, state: str) -> None:
    with pytest.raises(UsageError, match=r"state\.bin|gone"):
        step("sgd").save(tmp_path / path, tmp_path / state)
    assert not list(tmp_path.iterdir())


def test_source_and_its_outputs_are_preserved() -> None:
    model = linear()
    before = ir.to_bytes(model)
    made = graphopt.train_step(model, LOSS, "sgd", outputs="all")
    assert ir.to_bytes(model) == before
    assert made.plan.outputs == ["y"] and made.plan.inputs == ["x", "t"]
    ours = graphopt.Trainer(made, device="cpu")
    batch, other = next(batches(1)), next(batches(1, size=5))
    for fed in (batch, other, batch):  # also of other sizes
        p = ours.parameters()
        ours.step(fed)
        np.testing.assert_allclose(ours.outputs()["y"], fed["x"] @ p["w"] + p["b"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("largest", [0.5, 1e6])
def test_gradients_are_clipped_by_their_global_norm(largest: float) -> None:
    ours, batch = trainer("sgd", learning_rate=1.0, clip_norm=largest), next(batches(1))
    g = gradient({name: data.astype(np.float64) for name, data in LINEAR.items()}, batch)
    norm = np.sqrt(sum((part**2).sum() for part in g.values()))
    assert 0.5 < norm < 1e6
    ours.step(batch)
    for name, data in ours.parameters().items():
        expected = LINEAR[name] - g[name] * min(1.0, largest / (norm + 1e-6))
        np.testing.assert_allclose(data, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("largest", [None, 2.0])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_accumulated_steps_equal_one_large_step(optimizer: str, largest: float | None) -> None:
    large = list(batches(3, size=12))
    whole, parts = (
        trainer(optimizer, learning_rate=0.1, clip_norm=largest, accumulate=count) for count in (1, 3)
    )
    for batch in large:
        whole.step(batch)
        before = parts.parameters()
        for number in range(3):
            now = parts.parameters()
            assert all(np.array_equal(now[name], before[name]) for name in before)
            parts.step({name: data[4 * number : 4 * number + 4] for name, data in batch.items()})
        for name, data in whole.parameters().items():
            np.testing.assert_allclose(parts.parameters()[name], data, rtol=1e-5, atol=1e-6)
    carried = parts.carried()
    assert carried["accumulate.count"] == 0 and not carried["accumulate.sum.w"].any()
    assert optimizer == "sgd" or carried["adamw.step"] == 3


def test_no_decay_excludes_parameters() -> None:
    everything = trainer("sgd", learning_rate=0.1, weight_decay=1.0)
    weights = trainer("sgd", learning_rate=0.1, weight_decay=1.0, no_decay=["b*"])
    batch = next(batches(1))
    for ours in (everything, weights):
        ours.step(batch)
    one, other = everything.parameters(), weights.parameters()
    assert np.array_equal(one["w"], other["w"])
    np.testing.assert_allclose(other["b"] - one["b"], 0.1 * LINEAR["b"], rtol=1e-4)
    assert weights.plan.no_decay == ["b"]


def test_running_statistics_are_carried_but_not_trained() -> None:
    model = parse(
        """m (float[N,2] x) => (float[N,2] y) <float[2] scale = {1.0, 2.0}, float[2] bias = {0.0, 1.0},
        float[2] mean = {0.0, 0.0}, float[2] var = {1.0, 1.0}> {
            y, new_mean, new_var = BatchNormalization <training_mode = 1, momentum = 0.5> (x, scale, bias, mean, var)
        }"""
    )
    made = graphopt.train_step(model, "mse:y,t", "sgd")
    assert made.plan.parameters == ["scale", "bias"] and made.plan.statistics == ["mean", "var"]
    ours = graphopt.Trainer(made, device="cpu")
    x = np.array([[1, 2], [3, 6]], np.float32)
    ours.step({"x": x, "t": x})
    np.testing.assert_allclose(ours.parameters()["mean"], x.mean(0) / 2)
    ours.step({"x": x, "t": x})
    np.testing.assert_allclose(ours.parameters()["mean"], x.mean(0) * 0.75)
    exported = ours.export().graph.initializers["mean"].const_value
    assert exported is not None and np.array_equal(exported.numpy(), ours.parameters()["mean"])


#: A group, and a BatchNormalization in training mode before it.
GROUPS = """m (float[N,4] x) => (float[N,3] y)
    <float[4] scale = {1, 2, 3, 4}, float[4] bias = {0, 0, 0, 0}, float[4] mean = {0, 0, 0, 0},
     float[4] var = {1, 1, 1, 1}, float[4,3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12},
     float[3,3] v = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9}> {
    n, new_mean, new_var = BatchNormalization<training_mode = 1>(x, scale, bias, mean, var)
    a = MatMul(n, w) h = Tanh(a) m = MeanVarianceNormalization<axes = [1]>(h) b = MatMul(m, v) y = Sigmoid(b) }"""


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_step_by_group_equals_that_of_the_whole_model(optimizer: str) -> None:
    model = parse(GROUPS, opset=18)
    whole, grouped = (
        graphopt.train_step(model, LOSS, optimizer, clip_norm=1.0, accumulate=2, by_group=by_group)
        for by_group in (False, True)
    )
    assert whole.groups is None and grouped.groups == 1 and grouped.model.functions
    assert whole.plan == grouped.plan
    fused = graphopt.train_step(
        model, LOSS, optimizer, clip_norm=1.0, accumulate=2, by_group=True, fuser="builtin"
    )
    trainers = [graphopt.Trainer(item, device="cpu", threads=1) for item in (whole, grouped, fused)]
    losses = [item.fit(batches(4), learning_rate=0.1) for item in trainers]
    for found, item in zip(losses[1:], trainers[1:], strict=True):
        np.testing.assert_allclose(found, losses[0], rtol=1e-6)
        for name, value in trainers[0].carried().items():
            np.testing.assert_allclose(item.carried()[name], value, rtol=1e-5, atol=1e-6, err_msg=name)
    assert ir.to_bytes(grouped.model) == ir.to_bytes(
        graphopt.train_step(model, LOSS, optimizer, clip_norm=1.0, accumulate=2, by_group=True).model
    )


def test_a_parameter_before_an_operator_without_gradient_is_not_trained_by_group() -> None:
    model = parse(
        """m (float[N,2] x) => (float[N,2] y) <float[2,2] w = {1, 2, 3, 4}, float[2,2] v = {1, 2, 3, 4}> {
        a = MatMul(x, w) b = MatMul(x, v) c = Tanh(b) d = com.microsoft.SampleOp(c) y = Mul(a, d) }""",
        domains=', "com.microsoft" : 1',
    )
    with pytest.raises(NoGradient, match="SampleOp"):
        graphopt.train_step(model, LOSS, "sgd")
    with pytest.raises(NoGradient, match="SampleOp"):
        graphopt.train_step(model, LOSS, "sgd", ["w", "v"], by_group=True)
    made = graphopt.train_step(model, LOSS, "sgd", by_group=True)
    assert made.plan.parameters == ["w"] and list(made.excluded) == ["v"]


@pytest.mark.parametrize("by_group", [False, True], ids=["whole", "by group"])
@pytest.mark.parametrize("fuser", [None, "builtin"])
def test_equal_parameters_are_trained_separately(fuser: str | None, by_group: bool) -> None:
    text = """m (float[N,2] x) => (float[N,2] y) <float[2] p = {0, 0}, float[2] q = {0, 0}> {
        a = Mul(x, p) b = Tanh(x) c = Mul(b, q) y = Add(a, c) }"""
    made = graphopt.train_step(parse(text), LOSS, "sgd", learning_rate=0.5, fuser=fuser, by_group=by_group)
    ours = graphopt.Trainer(made, device="cpu", threads=1)
    x, t = (np.array(rows, np.float32) for rows in ([[1, 2], [3, -1]], [[1, -1], [2, 0.5]]))
    ours.step({"x": x, "t": t})
    for name, factor in (("p", x), ("q", np.tanh(x))):
        np.testing.assert_allclose(ours.parameters()[name], 0.25 * (t * factor).sum(0), rtol=1e-6)
    assert not np.allclose(ours.parameters()["p"], ours.parameters()["q"])
    trained = ours.export().graph.initializers
    assert trained["p"].const_value.numpy().tolist() == ours.parameters()["p"].tolist()


def test_parameters_merged_by_an_optimization_are_not_trained() -> None:
    text = """m (float[N,2] x) => (float[N,2] y) <float[2] p = {0.5, 2}, float[2] q = {0.5, 2}> {
        a = Mul(x, p) b = Tanh(a) y = Mul(b, q) }"""
    optimized = graphopt.optimize(parse(text)).model
    assert list(optimized.graph.initializers) == ["p"]
    with pytest.raises(UsageError, match="'p' would include that of 'q'"):
        graphopt.train_step(optimized, LOSS, "sgd")


def test_float16_parameters_stay_float16() -> None:
    bare = parse("m (float16[N,2] x, float16[2,2] w) => (float16[N,2] y) { y = MatMul(x, w) }")
    model, _ = graphopt.unlift_parameters(bare, {"w": np.arange(4, dtype=np.float16).reshape(2, 2)})
    made = graphopt.train_step(model, "mse:y,t", "momentum", clip_norm=1.0)
    assert {value.dtype for value in made.model.graph.outputs} == {ir.DataType.FLOAT16}
    ours = graphopt.Trainer(made, device="cpu")
    x = np.eye(2, dtype=np.float16)
    losses = ours.fit([{"x": x, "t": x}] * 30, 0.1)
    assert losses[-1] < losses[0] / 10 and ours.parameters()["w"].dtype == np.float16


def test_large_float16_gradients_are_clipped() -> None:
    bare = parse("m (float16[N,2] x, float16[2,2] w) => (float16[N,2] y) { y = MatMul(x, w) }")
    model, _ = graphopt.unlift_parameters(bare, {"w": np.eye(2, dtype=np.float16)})
    made = graphopt.train_step(model, "mse:y,t", "sgd", clip_norm=1.0)
    run = ReferenceEvaluator(onnx.load_from_string(ir.to_bytes(made.model))).run
    feeds = {"x": np.eye(2), "t": np.full((2, 2), 1000.0), "w": made.initial["w"]}
    feeds = {name: data.astype(np.float16) for name, data in feeds.items()}
    (new,) = run(["new.w"], {**feeds, "learning_rate": np.array(1.0, np.float32)})
    g = (feeds["x"] @ feeds["w"] - feeds["t"]).astype(np.float64) / 2
    assert (g**2).sum() > np.finfo(np.float16).max and new.dtype == np.float16
    np.testing.assert_allclose(new, feeds["w"] - g / np.sqrt((g**2).sum()), rtol=2e-3)


def test_invalid_training_is_refused() -> None:
    lonely = parse("m (float[2] x) => (float[2] y) { y = Relu(x) }")
    taken = parse(
        "m (float[2] x, float learning_rate) => (float[2] y) <float[2] w = {1.0, 2.0}> { y = Mul(x, w) }"
    )
    inner = parse("m (float[2] x) => (float[2] y) <float[2] w = {1.0, 2.0}> { h = Neg(x) y = Mul(h, w) }")
    next(iter(inner.graph)).outputs[0].name = "new.w"
    for model, settings, message in (
        (linear(), {"learning_rate": 0.0}, "learning rate"),
        (linear(), {"learning_rate": -1.0}, "learning rate"),
        (linear(), {"learning_rate": float("inf")}, "learning rate"),
        (linear(), {"clip_norm": 0.0}, "gradient norm"),
        (linear(), {"accumulate": 0}, "accumulated"),
        (linear(), {"no_decay": ["c"]}, "'c'"),
        (linear(), {"wrt": ["x"]}, "'x' has no initial value"),
        (linear(), {"wrt": ["nothing"]}, "'nothing'"),
        (lonely, {}, "depends on none"),
        (taken, {}, "already has a value 'learning_rate'"),
        (inner, {}, "already has a value 'new.w'"),
    ):
        with pytest.raises(UsageError, match=message):
            graphopt.train_step(model, LOSS, "adam", **settings)


def test_loss_keeps_its_name_and_plans_are_checked(tmp_path: Path) -> None:
    model = parse(
        "m (float[N,2] x) => (float cost) <float[2,2] w = {1.0, 2.0, 3.0, 4.0}> { h = MatMul(x, w) cost = ReduceMean <keepdims = 0> (h) }"
    )
    made = graphopt.train_step(model, "cost", "sgd")
    assert made.plan.loss == "cost" and [value.name for value in made.model.graph.outputs] == [
        "cost",
        "new.w",
    ]
    assert ops(made.model)[-1] == "Sub"
    assert Plan.parse(made.model.metadata_props[KEY]) == Plan.parse(made.plan.to_json())
    for text in (
        None,
        "{}",
        "[]",
        '{"version": 9, "next": {}}',
        made.plan.to_json().replace('"version": 1', '"version": 2'),
        made.plan.to_json().replace('"loss": "cost"', '"loss": 3'),
        made.plan.to_json().replace('"parameters": ["w"]', '"parameters": "w"'),
        made.plan.to_json().replace('"accumulate": 1', '"accumulate": 0'),
        made.plan.to_json().replace('"learning_rate": ', '"learning_rate": -'),
        "[" * 100_000,
    ):
        with pytest.raises(UsageError):
            Plan.parse(text)
    text = made.model.metadata_props[KEY]
    made.model.metadata_props[KEY] = text.replace('"parameters": ["w"]', '"parameters": ["v"]')
    graphopt.save(made.model, tmp_path / "step.onnx")
    with pytest.raises(UsageError, match="names 'v', which the model lacks"):
        graphopt.Trainer(tmp_path / "step.onnx")


def test_the_same_model_gives_the_same_bytes() -> None:
    assert ir.to_bytes(step(clip_norm=1.0, accumulate=2).model) == ir.to_bytes(
        step(clip_norm=1.0, accumulate=2).model
    )
