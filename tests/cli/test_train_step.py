"""graphopt train-step."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import graphopt
from graphopt import Trainer, api, ir
from tests.cli.conftest import Invoke
from tests.fusion.backends.c.runtime.samples import compiled
from tests.model_testing import parse
from tests.training.models import batches, linear


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    ir.save(linear(), path)
    return path


def test_by_group(invoke: Invoke, tmp_path: Path) -> None:
    text = """m (float[B,2] x) => (float[B,2] y) <float[2,2] w = {1, 2, 3, 4}, float[2,2] v = {1, 2, 3, 4}> {
        a = MatMul(x, w) h = Tanh(a) b = MatMul(x, v) z = com.microsoft.SampleOp(b) y = Add(h, z) }"""
    model, out = tmp_path / "model.onnx", tmp_path / "step.onnx"
    ir.save(parse(text, domains=', "com.microsoft" : 1'), model)
    arguments = ("train-step", model, "--loss-fn", "mse:y,t", "--optimizer", "sgd", "-o", out)
    assert "no gradient through com.microsoft::SampleOp" in invoke(*arguments).err and not out.exists()
    ran = invoke(*arguments, "--by-group")
    assert ran.status == 0 and "left out  v: no gradient through com.microsoft::SampleOp" in ran.out
    assert "  groups    1\n" in ran.out and ir.load(out).functions
    told = json.loads(invoke(*arguments, "--by-group", "--json").out)
    assert told["parameters"] == ["w"] and list(told["excluded"]) == ["v"] and told["groups"] == 1


def test_train_step_writes_step_state_and_plan(invoke: Invoke, model: Path) -> None:
    out = model.with_name("step.onnx")
    settings = (
        "--betas",
        "0.8,0.9",
        "--weight-decay",
        "0.1",
        "--no-decay",
        "b",
        "--clip-norm",
        "1",
        "--accumulate",
        "2",
    )
    ran = invoke(
        "train-step", model, "--loss-fn", "mse:y,t", "--optimizer", "adamw", *settings, "-o", out, "--json"
    )
    told = json.loads(ran.out)
    assert told["optimizer"] == {"name": "adamw", "weight_decay": 0.1, "betas": [0.8, 0.9], "eps": 1e-8}
    assert told["next"]["w"] == "new.w" and told["learning_rate"] == 1e-3 and told["no_decay"] == ["b"]
    assert sorted(map(Path, told["files"])) == [
        model.with_name(name) for name in ("step.onnx", "step.safetensors", "step.training.json")
    ]
    trainer = graphopt.Trainer(out, device="cpu")
    losses = trainer.fit(list(batches(1)) * 60, 0.1)
    assert losses[-1] < losses[0] / 2
    trainer.save(model.with_name("checkpoint.safetensors"))
    trained = model.with_name("trained.onnx")
    assert (
        invoke("unlift-parameters", model, model.with_name("checkpoint.safetensors"), "-o", trained).status
        == 0
    )
    found = ir.load(trained).graph.initializers["w"].const_value
    assert found is not None and np.array_equal(found.numpy(), trainer.parameters()["w"])


def test_required_inputs_are_reported(invoke: Invoke, model: Path) -> None:
    out, state = model.with_name("step.onnx"), model.with_name("start.safetensors")
    ran = invoke(
        "train-step",
        model,
        "--loss-fn",
        "mse:y,t",
        "--optimizer",
        "momentum",
        "-o",
        out,
        "--state",
        state,
        "--with-outputs",
    )
    assert "feed      x, t, learning_rate" in ran.out and "2 parameters, 2 states" in ran.out
    assert state.exists() and not out.with_suffix(".safetensors").exists()
    assert [value.name for value in ir.load(out).graph.outputs][:2] == ["loss", "y"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--loss-fn", "mse:y,t", "--optimizer", "adem"], "adem"),
        (["--loss-fn", "mse:y,t", "--optimizer", "sgd", "--nesterov"], "sgd has no setting nesterov"),
        (["--loss-fn", "mse:y,t", "--optimizer", "adam", "--betas", "0.9;1"], "no numbers"),
        (["--loss-fn", "mse:y,t", "--optimizer", "adam", "--learning-rate", "0"], "learning rate"),
        (["--loss-fn", "mse:y,t", "--optimizer", "adam", "--state", "state.npz"], "state.npz"),
        (["--loss-fn", "mse:y,t", "--loss", "y", "--optimizer", "adam"], "--loss"),
        (["--optimizer", "adam"], "--loss"),
    ],
)
def test_errors_are_reported_and_nothing_is_written(
    invoke: Invoke, model: Path, arguments: list[str], message: str
) -> None:
    before = sorted(model.parent.iterdir())
    ran = invoke("train-step", model, *arguments, "-o", model.with_name("step.onnx"))
    assert ran.status == 2 and message in ran.err
    assert sorted(model.parent.iterdir()) == before


@pytest.mark.parametrize("options", [(), ("--loss", "y", "--loss-fn", "mse:y,t"), ("--loss-fn", "mae:y,t")])
def test_losses_are_named_as_for_grad(invoke: Invoke, model: Path, options: tuple[str, ...]) -> None:
    out = model.with_name("out.onnx")
    trained = invoke("train-step", model, *options, "--optimizer", "adam", "-o", out)
    differentiated = invoke("grad", model, *options, "-o", out)
    assert "--loss" in trained.err or "mae" in trained.err
    assert (trained.status, trained.err) == (2, differentiated.err)


@compiled
def test_fused_steps_are_written_with_their_kernels(invoke: Invoke, tmp_path: Path) -> None:
    path, out = tmp_path / "model.onnx", tmp_path / "step.onnx"
    api.save(parse("g (float[N,4] x) => (float[N,4] y) <float[4,4] w = {1,0,2,0,0,1,0,1,1,1,0,0,0,1,0,2}> "
                   "{ m = MatMul(x, w) s = Sigmoid(m) y = Mul(m, s) }"), path)  # fmt: skip
    loss = ["--loss-fn", "mse:y,t"]
    found = invoke("train-step", path, *loss, "--optimizer", "adam", "--fuser", "native", "-o", out)
    assert found.status == 0 and out.with_suffix(".kernels.so").exists(), found.err
    assert "step.kernels.so" in found.out
    losses = [
        [Trainer(step).step({"x": np.ones((2, 4), np.float32), "t": np.zeros((2, 4), np.float32)})]
        for step in (out, api.train_step(path, "mse:y,t", "adam"))
    ]
    np.testing.assert_allclose(*losses, rtol=1e-5)
    found = invoke("grad", path, *loss, "--fuser", "native", "-o", tmp_path / "joint.onnx")
    assert (tmp_path / "joint.kernels.so").exists() and "joint.kernels.so" in found.out
    invoke("grad", path, *loss, "--fuser", "native", "--no-verify", "-o", tmp_path / "joint.onnx")
    assert (tmp_path / "joint.kernels.so").exists()
    invoke("grad", path, *loss, "-o", tmp_path / "joint.onnx")
    assert not (tmp_path / "joint.kernels.so").exists()
    found = invoke("grad", path, *loss, "--fuser", "native", "--split", "-o", tmp_path / "halves")
    assert found.status == 0 and list((tmp_path / "halves").glob("*.kernels.so")), found.err
