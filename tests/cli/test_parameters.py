"""graphopt lift-parameters and unlift-parameters."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from graphopt import ir
from tests.cli.conftest import Invoke
from tests.model_testing import parse

TEXT = "m (float[B,2] x) => (float[B,3] y) <float[2,3] w = {1,2,3,4,5,6}> { y = MatMul(x, w) }"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    ir.save(parse(TEXT), path)
    return path


def test_lift_and_unlift_restore_the_model(invoke: Invoke, model: Path) -> None:
    lifted, weights, whole = (model.with_name(name) for name in ("l.onnx", "w.safetensors", "b.onnx"))
    told = json.loads(invoke("lift-parameters", model, "-o", lifted, "--parameters", weights, "--json").out)
    assert told["parameters"] == ["w"] and told["bytes"] == 24 and str(weights) in told["files"]
    assert [value.name for value in ir.load(lifted).graph.inputs] == ["x", "w"]
    ran = invoke("unlift-parameters", lifted, weights, "-o", whole)
    assert ran.status == 0 and "1 parameter of" in ran.out
    assert ir.fingerprint(ir.load(whole)) == ir.fingerprint(ir.load(model))


def test_errors_are_reported_and_leave_no_file(invoke: Invoke, model: Path) -> None:
    out, weights = model.with_name("out.onnx"), model.with_name("w.npz")
    ran = invoke("lift-parameters", model, "-o", out, "--which", "v", "--parameters", weights)
    assert ran.status == 2 and "'v'" in ran.err and not out.exists() and not weights.exists()
    assert invoke("lift-parameters", model, "-o", out, "--parameters", model.with_name("w.txt")).status == 2
    np.savez(weights, w=np.ones((3, 3), np.float32))
    ran = invoke("unlift-parameters", model, weights, "-o", out)
    assert ran.status == 2 and "2x3" in ran.err and not out.exists()
    weights.write_bytes(b"")
    assert invoke("unlift-parameters", model, weights, "-o", out).status == 2
