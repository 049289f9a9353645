"""--target-opset of optimize and convert."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import onnx.parser

from tests.cli.conftest import Invoke


def test_convert_writes_for_an_opset(invoke: Invoke, small: Path) -> None:
    target = small.parent / "older.onnx"
    assert invoke("convert", small, target, "--target-opset", "13").status == 0
    assert onnx.load(target).opset_import[0].version == 13
    assert invoke("optimize", small, "-o", target, "--target-opset", "21").status == 0
    model = onnx.load(target)
    assert (model.opset_import[0].version, model.ir_version) == (21, 10)
    assert [node.op_type for node in model.graph.node] == ["Relu"]


def test_report_lists_opsets(invoke: Invoke, small: Path) -> None:
    out = invoke("optimize", small, "-o", "o.onnx", "--target-opset", "13", "-v").out
    assert "\n  opset 17 → 13\n" in out
    assert next(line for line in out.splitlines() if "convert-opset" in line).endswith("opset 17 → 13")
    assert "opset" not in invoke("optimize", small, "-o", "o.onnx", "--target-opset", "17").out
    assert "opset 17 → 13" in invoke("convert", small, "o.onnx", "--target-opset", "13").out


def test_convert_reports_the_comparison(invoke: Invoke, small: Path) -> None:
    outcome = invoke("convert", small, "o.onnx", "--target-opset", "13")
    assert "\n  verified  bit-identical in " in outcome.out and "onnxruntime, CPU, " in outcome.out
    told = json.loads(invoke("convert", small, "o.onnx", "--target-opset", "13", "--json").out)
    assert told["verification"]["equal"] is True
    unchecked = invoke("convert", small, "o.onnx", "--target-opset", "13", "--no-verify")
    assert "verified" not in unchecked.out
    assert json.loads(invoke("convert", small, "o.onnx", "--json").out)["verification"] is None


def test_an_opset_that_can_not_be_verified(invoke: Invoke, small: Path) -> None:
    target = small.parent / "newest.onnx"
    newest = str(onnx.defs.onnx_opset_version())
    outcome = invoke("convert", small, target, "--target-opset", newest)
    assert outcome.status == 2 and "runs opsets up to" in outcome.err and not target.exists()
    assert invoke("convert", small, target, "--target-opset", newest, "--no-verify").status == 0


def test_missing_kernel_is_reported_with_an_opset_that_has_one(invoke: Invoke, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    text = '<ir_version: 9, opset_import: ["" : 18]> g (double[N] x) => (double[N] y) { y = Softplus(x) }'
    onnx.save(onnx.parser.parse_model(text), path)
    outcome = invoke("optimize", path, "-o", tmp_path / "out.onnx", "--target-opset", "23")
    told = outcome.err
    assert outcome.status == 1 and "Could not find an implementation for Softplus" in told
    assert "under its own opset, 18" in told
