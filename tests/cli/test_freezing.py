"""optimize with freeze and pad-mm: the written models, and the reasons in reports."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import onnx.parser
import pytest

from tests.cli.conftest import Invoke

_TRAINING = """<ir_version: 8, opset_import: ["" : 17]>
g (float[N, 4] x, float[4] w) => (float[N, 4] y, bool[N, 4] mask)
<float[4] w = {1, 2, 3, 4}, float ratio = {0.5}, bool train = {1}> {
    n = Neg (w)
    p = Mul (x, n)
    y, mask = Dropout (p, ratio, train)
}"""
_PRODUCT = """<ir_version: 8, opset_import: ["" : 17]>
g (float16[N, 4093] x, float16[4093, 4093] w) => (float16[N, 4093] y) { y = MatMul (x, w) }"""


@pytest.fixture
def training(tmp_path: Path) -> Path:
    path = tmp_path / "training.onnx"
    onnx.save(onnx.parser.parse_model(_TRAINING), path)
    return path


@pytest.mark.parametrize("given", [("--pipeline", "freezing"), ("-O3", "--pre-pass", "freeze")])
def test_optimize_freezes(invoke: Invoke, training: Path, given: tuple[str, ...]) -> None:
    target = training.parent / "out.onnx"
    outcome = invoke("optimize", training, "-o", target, *given, "--device", "cpu")
    assert outcome.status == 0
    lines = outcome.out.splitlines()
    assert "  frozen: 1 overridable initializer became constant (w)" in lines
    assert "  frozen: 1 Dropout in inference form" in lines
    assert [line for line in lines if line.startswith("  verified  ")]
    graph = onnx.load(target).graph
    assert [value.name for value in graph.input] == ["x"]
    assert [value.name for value in graph.output] == ["y", "mask"]
    assert not {"Dropout", "Neg"} & {node.op_type for node in graph.node}


def test_a_parameter_that_callers_override_is_named(invoke: Invoke, training: Path) -> None:
    target = training.parent / "out.onnx"
    assert invoke("optimize", training, "-o", target, "--passes", "freeze{keep=w}").status == 0
    assert [value.name for value in onnx.load(target).graph.input] == ["x", "w"]
    target.unlink()
    outcome = invoke("optimize", training, "-o", target, "--passes", "freeze{keep=v}")
    assert outcome.status == 2 and "no overridable initializer is called 'v'" in outcome.err
    assert not target.exists()


def test_bisect_uses_the_frozen_model(invoke: Invoke, training: Path) -> None:
    outcome = invoke("bisect", training, "--pipeline", "freezing", "--device", "cpu")
    assert outcome.status == 0, outcome.err


def test_reports_have_reasons_against_padding(invoke: Invoke, tmp_path: Path) -> None:
    path = tmp_path / "product.onnx"
    onnx.save(onnx.parser.parse_model(_PRODUCT), path)
    arguments = ("optimize", path, "--dry-run", "--passes", "pad-mm", "--no-verify")
    on_host = invoke(*arguments, "--device", "cpu").out
    assert "pad-mm skipped: the CPU has no tensor cores [no-tensor-cores]" in on_host
    data = json.loads(invoke(*arguments, "--device", "cuda", "--json").out)
    assert data["optimized"]["ops"] == {"MatMul": 1}
    (refusal,) = [item for item in data["refusals"] if item["rule"] == "pad-mm"]
    assert refusal["reason"] == "the number of rows or matrices is unknown"
    data = json.loads(invoke(*arguments, "--device", "cuda", "--dim", "N=8192", "--json").out)
    assert data["optimized"]["ops"] == {"MatMul": 1, "Pad": 2, "Slice": 1}
