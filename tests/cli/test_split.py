"""graphopt grad --split."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import graphopt
from graphopt import ir
from tests.cli.conftest import Invoke
from tests.model_testing import parse

TEXT = """m (float[N,64] x) => (float[N,64] y) <float[64,64] w = {%s}> {
    h = MatMul(x, w)
    s = Sigmoid(h)
    y = Mul(h, s) }""" % ", ".join(f"{number % 7 - 3}" for number in range(64 * 64))  # noqa: UP031


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    ir.save(parse(TEXT), path)
    return path


def test_split_writes_both_models_weights_and_plan(invoke: Invoke, model: Path) -> None:
    out = model.with_name("step")
    ran = invoke("grad", model, "--loss-fn", "mse:y,t", "--split", "--dim", "N=32", "-o", out, "--json")
    told = json.loads(ran.out)
    plan = json.loads((out / "plan.json").read_text())
    assert {key: told[key] for key in plan} == plan and told["verification"]["equal"]
    assert sorted(path.name for path in out.iterdir()) == [
        "backward.onnx", "forward.onnx", "plan.json", "weights.bin"
    ]  # fmt: skip
    assert (out / "weights.bin").stat().st_size == 64 * 64 * 4  # once for both
    assert plan["report"]["dims"] == {"N": 32} and plan["gradients"] == {"w": "grad.w"}
    x = np.random.default_rng(0).standard_normal((2, 64)).astype(np.float32)
    feeds = {"x": x, "t": x}
    feeds |= graphopt.run(out / plan["forward"]["file"], feeds)
    assert list(feeds)[2:] == plan["forward"]["outputs"]
    assert plan["backward"]["inputs"][: len(plan["handed"])] == plan["handed"]
    assert plan["backward"]["inputs"][: len(plan["static"])] == plan["static"]
    taken = {name: feeds[name] for name in plan["backward"]["inputs"] if name in feeds}
    gradient = graphopt.run(out / plan["backward"]["file"], taken)["grad.w"]
    _, truth = graphopt.value_and_grad(model, "mse:y,t")({"x": x, "t": x})
    assert np.allclose(gradient, truth["w"], rtol=1e-4, atol=1e-4)


def test_residuals_and_recomputation_are_reported(invoke: Invoke, model: Path) -> None:
    out = model.with_name("step")
    text = invoke("grad", model, "--loss-fn", "mse:y,t", "--split", "--memory-budget", "0", "-o", out).out
    assert "N=16 (assumed)" in text and "verified" in text and "0% of" in text
    everything = model.with_name("everything")
    text = invoke("grad", model, "--loss-fn", "mse:y,t", "--split", "--save-everything", "-o", everything).out
    assert "0 nodes" in text and "100% of" in text


def test_failures_leave_no_folder(invoke: Invoke, model: Path) -> None:
    out = model.with_name("step")
    loss = ("--loss-fn", "mse:y,t")
    assert invoke("grad", model, *loss, "--split", "--dim", "M=3", "-o", out).status == 2
    assert invoke("grad", model, *loss, "--split", "--memory-budget", "2", "-o", out).status == 2
    assert invoke("grad", model, *loss, "--memory-budget", "0.5", "-o", out).status == 2
    both = ("--memory-budget", "0.5", "--save-everything")
    assert invoke("grad", model, *loss, "--split", *both, "-o", out).status == 2
    assert not out.exists()
    out.mkdir()
    (out / "mine").touch()
    ran = invoke("grad", model, *loss, "--split", "-o", out)
    assert ran.status == 2 and "not empty" in ran.err and [path.name for path in out.iterdir()] == ["mine"]
