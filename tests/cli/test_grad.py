"""graphopt grad."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from graphopt import ir
from tests.cli.conftest import Invoke
from tests.model_testing import parse


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    ir.save(parse("m (float[B,2] x, float[2,3] w) => (float[B,3] y) { f = Floor(x) y = MatMul(f, w) }"), path)
    return path


def test_joint_graph_is_written_and_described(invoke: Invoke, model: Path) -> None:
    out = model.with_name("joint.onnx")
    ran = invoke("grad", model, "--loss-fn", "mse:y,t", "--wrt", "x,w", "-o", out, "--json")
    told = json.loads(ran.out)
    assert told["gradients"] == {"x": "grad.x", "w": "grad.w"} and told["unrelated"] == ["x"]
    assert told["stopped"] == [
        {"op": "Floor", "node": "Floor(f)", "reason": "it is piecewise constant", "partly": False}
    ]
    outputs = [output.name for output in ir.load(out).graph.outputs]
    assert outputs == ["y", "loss", "grad.x", "grad.w"]
    text = invoke("grad", model, "--loss-fn", "mse:y,t", "--wrt", "inputs", "--only-loss", "-o", out).out
    assert "gradients 1: grad.w" in text and "no gradient through 1 node: Floor" in text, text
    text = invoke(
        "grad", model, "--loss-fn", "mse:y,t", "--wrt", "inputs", "--only-loss", "-o", out, "-v"
    ).out
    assert "no gradient through Floor Floor(f): it is piecewise" in text
    assert [output.name for output in ir.load(out).graph.outputs] == ["loss", "grad.w"]


def test_loss_must_be_named_and_have_one_element(invoke: Invoke, model: Path) -> None:
    out = model.with_name("joint.onnx")
    assert invoke("grad", model, "-o", out).status == 2
    ran = invoke("grad", model, "--loss", "nothing", "-o", out)
    assert ran.status == 2 and "'nothing'" in ran.err
    assert not out.exists()


def test_wrt_may_be_repeated(invoke: Invoke, model: Path) -> None:
    out = model.with_name("joint.onnx")
    ran = invoke(
        "grad", model, "--loss", "mse:y,t", "--wrt", "w", "--wrt", "params,inputs", "-o", out, "--json"
    )
    told = json.loads(ran.out)
    assert (
        list(told["gradients"]) == ["w"] and told["unrelated"] == ["x"] and told["inputs"]["t"] == "f32[B, 3]"
    )
    assert (
        "t f32[B, 3], which the loss compares with"
        in invoke("grad", model, "--loss", "mse:y,t", "--wrt", "w", "-o", out).out
    )


def test_commands_do_not_overwrite_their_input_model(invoke: Invoke, model: Path) -> None:
    before = model.read_bytes()
    for command in (["grad", model, "--loss", "mse:y,t", "--wrt", "w"], ["lift-parameters", model]):
        ran = invoke(*command, "-o", model)
        assert ran.status == 2 and "write over" in ran.err and model.read_bytes() == before


def test_no_gradient_at_all_is_an_error(invoke: Invoke, model: Path) -> None:
    out = model.with_name("joint.onnx")
    ran = invoke("grad", model, "--loss", "mse:y,t", "-o", out)
    assert ran.status == 2 and "depends on none" in ran.err and not out.exists()
    ran = invoke("grad", model, "--loss", "mse:y,t", "--wrt", "parms", "-o", out)
    assert ran.status == 2 and "params" in ran.err


def test_by_group(invoke: Invoke, tmp_path: Path) -> None:
    """A parameter whose gradient depends on an operator without one is left out; the other is trained."""
    text = """m (float[B,2] x) => (float[B,2] y, float[B,2] z, float[1] total)
        <float[2,2] w = {1, 2, 3, 4}, float[2,2] v = {1, 2, 3, 4}, int64[1] one = {1}> {
        a = MatMul(x, w) y = Tanh(a) b = MatMul(x, v) z = com.microsoft.SampleOp(b)
        s = Add(y, z) t = ReduceSum<keepdims = 0>(s) total = Reshape(t, one) }"""
    model, out = tmp_path / "model.onnx", tmp_path / "joint.onnx"
    ir.save(parse(text, domains=', "com.microsoft" : 1'), model)
    assert (
        "no gradient through com.microsoft::SampleOp"
        in invoke("grad", model, "--loss", "total", "-o", out).err
    )
    ran = invoke("grad", model, "--loss", "total", "--by-group", "-o", out)
    assert ran.status == 0 and "left out  v: no gradient through com.microsoft::SampleOp" in ran.out
    assert "  groups    1\n" in ran.out
    joint = ir.load(out)
    assert [output.name for output in joint.graph.outputs] == ["y", "z", "total", "grad.w"]
    assert {key[0] for key in joint.functions} == {"graphopt.autodiff", "graphopt.autodiff.backward"}
    ran = invoke("grad", model, "--loss", "total", "--by-group", "--split", "-o", tmp_path / "step", "--json")
    told = json.loads(ran.out)
    assert list(told["excluded"]) == ["v"] and list(told["gradients"]) == ["w"]
    fused = invoke("grad", model, "--loss", "total", "--by-group", "--fuser", "builtin", "-o", out)
    assert fused.status == 0 and not ir.load(out).functions, fused.err
