"""The sample models are valid, run for all their shape sets, look as advertised and never change."""

from __future__ import annotations

import onnx
import onnxruntime
import pytest

from benchmarks.inputs import make_feeds
from samples import models
from zoo import SAMPLES


@pytest.fixture(scope="module", params=sorted(SAMPLES))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_is_valid(name: str) -> None:
    onnx.checker.check_model(SAMPLES[name].build(), full_check=True)


def test_runs_on_every_shape_set(name: str) -> None:
    sample = SAMPLES[name]
    session = onnxruntime.InferenceSession(
        sample.build().SerializeToString(), providers=["CPUExecutionProvider"]
    )
    entry = sample.manifest_entry(name)
    assert len(entry["shape_sets"]) > 1
    for i in range(len(entry["shape_sets"])):
        outputs = session.run(None, make_feeds(entry, i))
        assert len(outputs) == len(session.get_outputs())


def test_is_the_same_on_every_run(name: str, tmp_path) -> None:
    first = models.write(name, tmp_path).read_bytes()
    assert models.write(name, tmp_path).read_bytes() == first
    assert len(first) < 500_000


@pytest.mark.parametrize(
    ("name", "operators"),
    [
        ("transformer", {"Shape", "Gather", "Unsqueeze", "Concat", "Reshape", "Expand", "Where", "Erf"}),
        ("cnn", {"Pad", "Conv", "BatchNormalization", "Dropout", "Flatten", "Gemm"}),
        ("control_flow", {"If", "Loop"}),
        ("quantized", {"QuantizeLinear", "DequantizeLinear"}),
        ("classifier", {"Scaler", "LinearClassifier", "ZipMap"}),
        ("functions", {"Block"}),
    ],
)
def test_sample_contains_its_operators(name: str, operators: set[str]) -> None:
    assert operators <= {node.op_type for node in SAMPLES[name].build().graph.node}


def test_command_refuses_an_unknown_name(tmp_path, capsys) -> None:
    with pytest.raises(SystemExit, match="2"):
        models.main(["--out", str(tmp_path), "tranformer"])
    assert "tranformer" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
