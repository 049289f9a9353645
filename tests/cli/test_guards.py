"""Guards on the command line: they are printed, and never written."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx.parser
import pytest

import graphopt
from tests.cli.conftest import Invoke

NOTED = "tests.cli.broken_passes:NoteColumns"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 17]>'
        "g (float[N,M] x) => (float[N,M] y) { s = Shape(x) z = Relu(x) y = Reshape(z, s) }"
    )
    onnx.save(model, tmp_path / "in.onnx")
    return tmp_path / "in.onnx"


def test_dumps_show_guards(invoke: Invoke, path: Path) -> None:
    passes = f"{NOTED},insert-guards"
    out = invoke("dump", path, "--pass-by-pass", "--changed", "--diff", "--passes", passes).out
    assert """graphopt.profile::Guard(%x, seen='{"type": "tensor(float)", "shape": ["?", 4]}')""" in out
    assert "%x_guard_output_0: f32[N, 4]" in out


@pytest.mark.parametrize("text", ["insert-guards", "insert-guards,O2"])
def test_no_model_with_guards_is_written(invoke: Invoke, path: Path, text: str) -> None:
    target = path.parent / "out.onnx"
    passes = f"{NOTED},{text}"
    outcome = invoke("optimize", path, "-o", target, "--passes", passes, "--no-verify")
    assert outcome.status == 2 and "1 guard left, which no runtime supports" in outcome.err
    assert not target.exists()
    outcome = invoke("optimize", path, "-o", target, "--passes", passes)
    assert outcome.status == 0 and "dropped insert-guards" in outcome.err
    assert graphopt.verify(path, target).ok
