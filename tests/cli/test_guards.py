"""What becomes of guards on the command line: they are shown, and never written."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import onnx.parser
import pytest

import graphopt
from graphopt.profile import Seen
from tests.cli.conftest import Invoke


@pytest.fixture
def in_a_file(tmp_path: Path) -> Path:
    """A model whose file notes what was seen of its input."""
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 17]>'
        "g (float[N,M] x) => (float[N,M] y) { s = Shape(x) z = Relu(x) y = Reshape(z, s) }"
    )
    model.graph.input[0].metadata_props.add(
        key="graphopt.profile.seen", value=json.dumps(Seen("tensor(float)", ("s0", 4)).to_dict())
    )
    onnx.save(model, tmp_path / "noted.onnx")
    return tmp_path / "noted.onnx"


def test_dumps_show_guards(invoke: Invoke, in_a_file: Path) -> None:
    out = invoke("dump", in_a_file, "--pass-by-pass", "--changed", "--diff", "--passes", "insert-guards").out
    assert """graphopt.profile::Guard(%x, seen='{"type": "tensor(float)", "shape": ["?", 4]}')""" in out
    assert "%x_guard_output_0: f32[N,4]" in out


@pytest.mark.parametrize("text", ["insert-guards", "insert-guards,O2"])
def test_no_model_with_guards_is_written(invoke: Invoke, in_a_file: Path, text: str) -> None:
    target = in_a_file.parent / "out.onnx"
    outcome = invoke("optimize", in_a_file, "-o", target, "--passes", text, "--no-verify")
    assert outcome.status == 2 and "1 guard left, and no runtime knows them" in outcome.err
    assert not target.exists()
    outcome = invoke("optimize", in_a_file, "-o", target, "--passes", text)
    assert outcome.status == 0 and "dropped insert-guards" in outcome.err
    assert graphopt.verify(in_a_file, target).ok
