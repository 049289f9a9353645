"""A file format that is registered here works everywhere: loading, saving, onnxruntime and the command line."""

from __future__ import annotations

import base64
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

import graphopt
from graphopt import ir
from graphopt.cli.main import main
from graphopt.errors import InvalidModel, UnsupportedModel
from graphopt.ir.io import codecs
from graphopt.ir.io.codecs import Codec, ExternalData
from graphopt.util import model_suffixes

MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
toy (float[N, 2] x) => (float[N, 2] y) <float[2, 2] w = {1, 2, 3, 4}> {
  a = Identity(x)
  b = MatMul(a, w)
  y = Relu(b)
}
"""


def _load(data: bytes, where: str) -> onnx.ModelProto:
    try:
        return onnx.ModelProto.FromString(base64.b85decode(data))
    except ValueError as error:
        raise InvalidModel(f"{where} is not base85: {error}") from error


def _save(model: ir.Model, inline_limit: int) -> list[bytes]:
    if any(node.op_type == "Tanh" for node in model.graph):
        raise UnsupportedModel("base85 can't hold a Tanh")
    return [base64.b85encode(ir.to_proto(model).SerializeToString())]


@pytest.fixture(params=[None, ExternalData(".b85data", by_default=True)], ids=["whole", "external data"])
def codec(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Codec:
    monkeypatch.setattr(codecs, "_BY_SUFFIX", dict(codecs._BY_SUFFIX))
    monkeypatch.setattr(model_suffixes, "_known", list(model_suffixes._known))
    codec = Codec("base85", (".b85",), _load, _save, request.param)
    codecs.register(codec)
    return codec


@pytest.fixture
def original(tmp_path: Path) -> Path:
    path = tmp_path / "toy.onnx"
    ir.save(ir.from_proto(onnx.parser.parse_model(MODEL)), path)
    return path


def test_a_registered_format_is_loaded_and_saved(codec: Codec, original: Path, tmp_path: Path) -> None:
    path = tmp_path / "toy.b85"
    written = ir.save(ir.load(original), path, threshold=0)
    data = tmp_path / "toy.b85.b85data"
    assert written == ([path] if codec.external_data is None else [path, data])
    base64.b85decode(path.read_bytes())
    ir.save(ir.load(path), tmp_path / "back.onnx")
    assert ir.print_model(ir.load(tmp_path / "back.onnx")) == ir.print_model(ir.load(original))
    assert not (tmp_path / "back.onnx.data").exists()
    assert ir.codec_of(path) is codec and ".b85" in ir.suffixes()


def test_sessions_receive_onnx_for_other_formats(codec: Codec, original: Path, tmp_path: Path) -> None:
    path = tmp_path / "toy.b85"
    ir.save(ir.load(original), path)
    outputs = graphopt.run(path, {"x": np.ones((1, 2), np.float32)})
    np.testing.assert_array_equal(outputs["y"], [[4, 6]])


def test_the_command_line_reads_and_writes_a_registered_format(
    codec: Codec, original: Path, tmp_path: Path
) -> None:
    source, target = tmp_path / "toy.b85", tmp_path / "optimized.b85"
    environ = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    assert main(["convert", str(original), str(source)], environ) == 0
    assert main(["optimize", str(source), "-o", str(target)], environ) == 0
    assert [node.op_type for node in ir.load(target).graph] == ["MatMul", "Relu"]


def test_errors_of_a_registered_format_name_the_file(codec: Codec, tmp_path: Path) -> None:
    path = tmp_path / "toy.b85"
    path.write_bytes(b'"no base85"')
    with pytest.raises(InvalidModel, match=r"toy\.b85 is not base85"):
        ir.load(path)


def test_check_format_reports_unsupported_models(codec: Codec, tmp_path: Path) -> None:
    model = ir.from_proto(onnx.parser.parse_model(MODEL.replace("Relu", "Tanh")))
    if codec.external_data is None:
        with pytest.raises(UnsupportedModel, match="can't hold a Tanh"):
            ir.check_format(model, tmp_path / "toy.b85")
    else:
        ir.check_format(model, tmp_path / "toy.b85")


def test_a_suffix_belongs_to_one_format() -> None:
    with pytest.raises(ValueError, match=r"suffix \.json belongs to JSON IR"):
        codecs.register(Codec("other", (".json",), _load, _save))
