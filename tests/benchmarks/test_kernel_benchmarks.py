"""The benchmarks of kernels on models and shapes: races with a peer in another process, and selections."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from benchmarks import kernels_on_models, kernels_on_shapes
from benchmarks.kernels_on_shapes import Shape
from benchmarks.model_races import OPENVINO, OpenVino, race
from graphopt.ort.session_options import SessionChoice
from graphopt.tuning.call_subjects import CallSubject

#: A stand-in for OpenVINO whose outputs are zeros.
PEER = """
class Port:
    names = {"x"}
class Tensor:
    import numpy
    data = numpy.zeros((1, 4), "float32")
class Request:
    output_tensors = [Tensor()]
    def infer(self, feeds, **options):
        assert list(feeds) == ["x"], feeds
class Compiled:
    inputs = [Port()]
    def create_infer_request(self):
        return Request()
class Core:
    def compile_model(self, model, device, config):
        assert (device, config["INFERENCE_PRECISION_HINT"], config["INFERENCE_NUM_THREADS"]) == ("CPU", "f32", 1)
        return Compiled()
__version__ = "0"
"""


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """A model, and a file with its inputs."""
    model, feeds = tmp_path / "m.onnx", tmp_path / "feeds.npz"
    text = '<ir_version: 10, opset_import: ["": 21]> g (float[1,4] x) => (float[1,4] y) { y = Relu(x) }'
    onnx.save(onnx.parser.parse_model(text), model)
    np.savez(feeds, x=np.ones((1, 4), np.float32))
    return model, feeds


def test_onnxruntime_and_a_peer_take_turns(
    files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "openvino.py").write_text(PEER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    model, feeds = files
    models = {"one": (str(model), None), "again": (str(model), None)}
    found = race(models, feeds, 1, (sys.executable, model), 0.0, 0)
    assert list(found) == ["one", "again", OPENVINO] or set(found) == {"one", "again", OPENVINO}
    assert {len(times) for times in found.values()} == {5} and all(min(times) > 0 for times in found.values())
    peer = OpenVino(sys.executable, model, feeds, 1)
    (output,) = peer.outputs(tmp_path / "outputs.npz")
    peer.close()
    assert output.shape == (1, 4) and not output.any()


def test_a_peer_that_does_not_start_is_reported(
    files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "openvino.py").write_text("raise ImportError")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    model, feeds = files
    peer = OpenVino(sys.executable, model, feeds, 1)
    peer.close()
    assert peer.failure == "its process ended"
    assert list(race({"one": (str(model), None)}, feeds, 1, (sys.executable, model), 0.0, 0)) == ["one"]


def row(model: str, native: float, openvino: float | None, conclusion: str = "faster") -> dict[str, object]:
    ratios = {"graphopt": native} | ({} if openvino is None else {OPENVINO: openvino})
    return {
        "model": model, "threads": 1, "milliseconds": 1.5, "ratios": ratios, "band": [0.99, 1.01],
        "conclusions": dict.fromkeys(ratios, conclusion), "errors": dict.fromkeys(ratios, 1e-7),
        "openvino_failure": None if openvino else "no operator", "kernels": 2, "build_seconds": [4.2, 0.9],
        "library_bytes": 50 << 10,
    }  # fmt: skip


def test_the_table_of_models_names_losses_and_failures() -> None:
    rows = [row("a", 0.5, 0.8), row("b", 1.25, None, "slower")]
    lines = kernels_on_models.table(rows).splitlines()
    assert "| a | 1 | 1.5 | 0.50 | 0.99 … 1.01 | 0.80 | 1e-07 | 1e-07 | 2 | 4.2 | 0.9 | 50 |" in lines
    assert "| b | 1 | 1.5 | 1.25 slower | 0.99 … 1.01 | fails | 1e-07 |  | 2 | 4.2 | 0.9 | 50 |" in lines
    assert list(kernels_on_models.summary(rows)) == [
        "- graphopt, 1 thread: 0.791 (geometric mean of 2 models)",
        "- OpenVINO, 1 thread: 0.800 (geometric mean of 1 models)",
    ]
    ahead = list(kernels_on_models.summary([row("a", 0.9, 0.8)]))
    assert ahead[-1] == "- OpenVINO is ahead of the result on a"


def test_shapes_are_chosen_evenly_for_each_operator() -> None:
    def shape(operator: str, operations: int) -> Shape:
        subject = CallSubject(f"{operator}{operations}", (), (), (), b"", {})
        return Shape("m", operator, subject, SessionChoice(), operations)

    found = [shape("Conv", size) for size in (50, 10, 40, 20, 30)] + [shape("LSTM", 7)]
    selected = kernels_on_shapes.chosen(found, 3)
    assert [(one.operator, one.operations) for one in selected] == [
        ("Conv", 10), ("Conv", 30), ("Conv", 50), ("LSTM", 7),
    ]  # fmt: skip
