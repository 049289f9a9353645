"""graphopt grad."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from graphopt import ir
from tests.cli.conftest import Invoke
from tests.support import parse


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    ir.save(parse("m (float[B,2] x, float[2,3] w) => (float[B,3] y) { f = Floor(x) y = MatMul(f, w) }"), path)
    return path


def test_it_writes_a_joint_graph_and_tells_what_is_in_it(invoke: Invoke, model: Path) -> None:
    out = model.with_name("joint.onnx")
    ran = invoke("grad", model, "--loss-fn", "mse:y,t", "--wrt", "x,w", "-o", out, "--json")
    told = json.loads(ran.out)
    assert told["gradients"] == {"x": "grad.x", "w": "grad.w"} and told["unrelated"] == ["x"]
    assert told["stopped"] == [
        {"op": "Floor", "node": "Floor(f)", "reason": "it is constant between its jumps"}
    ]
    outputs = [output.name for output in ir.load(out).graph.outputs]
    assert outputs == ["y", "loss", "grad.x", "grad.w"]
    text = invoke("grad", model, "--loss-fn", "mse:y,t", "--wrt", "inputs", "--only-loss", "-o", out).out
    assert "2 gradients" not in text and "no gradient through Floor" in text
    assert [output.name for output in ir.load(out).graph.outputs] == ["loss", "grad.w"]


def test_a_loss_has_to_be_named_and_to_have_one_element(invoke: Invoke, model: Path) -> None:
    out = model.with_name("joint.onnx")
    assert invoke("grad", model, "-o", out).status == 2
    ran = invoke("grad", model, "--loss", "nothing", "-o", out)
    assert ran.status == 2 and "'nothing'" in ran.err
    assert not out.exists()
