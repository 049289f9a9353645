"""Run the command line in this process, on small models in files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx.parser
import pytest

from graphopt.cli.main import main


@dataclass(frozen=True)
class Outcome:
    """The outcome of a call of the command line."""

    status: int
    out: str
    err: str


Invoke = Callable[..., Outcome]

#: y = Relu(Identity(x)) + 0: three nodes; only the Relu is required.
SMALL = """
<ir_version: 8, opset_import: ["" : 17], producer_name: "test">
small (float[N, 4] x) => (float[N, 4] y) <float zero = {-0.0}> {
  a = Identity(x)
  b = Relu(a)
  y = Add(b, zero)
}
"""

#: A matrix of 64 weights, folded through a Transpose.
WEIGHTS = """
<ir_version: 8, opset_import: ["" : 17]>
weights (float[N, 8] x) => (float[N, 8] y) <float[8, 8] w> {
  t = Transpose <perm = [1, 0]> (w)
  y = MatMul(x, t)
}
"""


@pytest.fixture
def invoke(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Invoke:
    """Call ``graphopt`` in an empty folder, without environment variables, and with a separate store."""
    folder = tmp_path / "cwd"
    folder.mkdir()
    monkeypatch.chdir(folder)
    cache = str(tmp_path / "cache")

    def call(*arguments: object, environ: dict[str, str] | None = None) -> Outcome:
        capsys.readouterr()
        status = main([str(argument) for argument in arguments], {"XDG_CACHE_HOME": cache} | (environ or {}))
        captured = capsys.readouterr()
        return Outcome(int(status), captured.out, captured.err)

    return call


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """The file of a small model."""
    path = tmp_path / "small.onnx"
    onnx.save(onnx.parser.parse_model(SMALL), path)
    return path


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """The file of a model with a weight."""
    import numpy as np

    proto = onnx.parser.parse_model(WEIGHTS)
    del proto.graph.initializer[:]
    array = np.arange(64, dtype=np.float32).reshape(8, 8) / 64
    proto.graph.initializer.append(onnx.numpy_helper.from_array(array, "w"))
    path = tmp_path / "weights.onnx"
    onnx.save(proto, path)
    return path


def with_large_weight(weights: Path) -> onnx.ModelProto:
    """The model of the fixture ``weights`` with a weight that is large enough for a data file."""
    import numpy as np

    model = onnx.load(weights)
    large = onnx.numpy_helper.from_array(np.arange(800, dtype=np.float32).reshape(8, 100), "w")
    model.graph.initializer[0].CopyFrom(large)
    del model.graph.node[0]
    model.graph.node[0].input[1] = "w"
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 100
    return model
