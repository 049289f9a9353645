"""For files that are not ONNX models, the error names the format and the next step."""

from __future__ import annotations

import gzip
import io
import pickle
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx.numpy_helper
import pytest

from graphopt import ir
from graphopt.errors import InvalidModel, UsageError


def zipped(*names: str) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name in names:
            archive.writestr(name, b"content")
    return content.getvalue()


def tarred(name: str) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        archive.addfile(tarfile.TarInfo(name))
    return content.getvalue()


def arrays(save: Callable[..., None]) -> bytes:
    content = io.BytesIO()
    save(content, np.zeros(3))
    return content.getvalue()


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n"
HEADER = b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
TENSOR = onnx.numpy_helper.from_array(np.zeros(3, np.float32), "x").SerializeToString()
#: Of a GraphDef: a node called x of the operator Placeholder.
GRAPH_DEF = b"\n\x10\n\x01x\x12\x0bPlaceholder"

CASES = {
    "model.onnx": [
        (POINTER, "a Git LFS pointer", "git lfs pull"),
        (
            zipped("m/data.pkl", "m/constants.pkl", "m/code/m.py"),
            "a TorchScript archive",
            "torch.onnx.export",
        ),
        (zipped("m/data.pkl", "m/data/0"), "a PyTorch checkpoint", "torch.onnx.export"),
        (zipped("serialized_exported_program.json"), "torch.export", "torch.onnx.export"),
        (zipped("config.json", "model.weights.h5"), "a Keras model", "model.export"),
        (arrays(np.savez), "numpy arrays", "--input"),
        (zipped("a/m.onnx", "readme.txt"), "a zip archive", "unzip {path} (a/m.onnx in it)"),
        (gzip.compress(b"content"), "compressed by gzip", "gunzip -k {path}"),
        (tarred("m.onnx"), "a tar archive", "tar xf {path}"),
        (pickle.dumps({"w": 1}, protocol=2), "a Python pickle", "torch.onnx.export"),
        (b"\x1c\x00\x00\x00TFL3\x14\x00", "a TensorFlow Lite model", "--tflite {path}"),
        (b"\x1c\x00\x00\x00ORTM\x14\x00", "onnxruntime's .ort format", ".onnx file"),
        (b"\x89HDF\r\n\x1a\n\x00", "an HDF5 file", "model.export"),
        (len(HEADER).to_bytes(8, "little") + HEADER + bytes(4), "a safetensors file", "unlift-parameters"),
        (b"GGUF\x03\x00\x00\x00", "a GGUF file", "ONNX"),
        (arrays(np.save), "a numpy array", "--input NAME:{path}"),
        (b"<?xml version='1.0'?>\n<net name='m'>", "an OpenVINO model", ".onnx file"),
        (b"\n<!DOCTYPE html>\n<html>", "an HTML page", "download"),
        (b"\x89PNG\r\n\x1a\n" + bytes(range(256)), "a PNG image", ".onnx"),
        (b'<ir_version: 8, opset_import: ["" : 17]>', "ONNX text", "model.onnxtxt"),
        (b"Entry not found\n", "a text file", "name a .onnx file"),
        ("Dear reader, «this» is {a} letter. ".encode() * 200, "a text file", ".onnxtxt"),
    ],
    "model.tar.gz": [(gzip.compress(b"content"), "a compressed archive", "tar xzf")],
    "input_0.pb": [(TENSOR, "a single tensor", "model")],
    "saved.pb": [(GRAPH_DEF, "a TensorFlow graph", "--graphdef {path}")],
    "model.mlmodel": [(b"\x08\x05\x12\x00", "a Core ML model", ".onnx")],
    "model.onnxtxt": [(POINTER, "a Git LFS pointer", "git lfs pull")],
    "model.json": [
        (POINTER, "a Git LFS pointer", "git lfs pull"),
        (b"\x89HDF\r\n\x1a\n\x00", "HDF5", "export"),
    ],
}


@pytest.mark.parametrize(
    ("name", "content", "kind", "hint"),
    [pytest.param(name, *case, id=case[1]) for name, cases in CASES.items() for case in cases],
)
def test_format_of_a_file_that_is_not_onnx_is_reported(
    tmp_path: Path, name: str, content: bytes, kind: str, hint: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InvalidModel) as caught:
        ir.load(path)
    assert caught.value.message.startswith(f"{path} is not an ONNX model, but ")
    assert kind in caught.value.message
    assert hint.replace("{path}", str(path)) in (caught.value.hint or "")


@pytest.mark.parametrize("content", [b"\x08", bytes(range(256)), b"\xff\xfe\x00\x01", b"\x08\x07\x3a\xff"])
def test_truncated_model_is_not_recognized_as_another_format(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(InvalidModel) as caught:
        ir.load(path)
    assert ", but " not in caught.value.message
    assert caught.value.hint == "export or download the model again"


def test_empty_file_and_empty_folder(tmp_path: Path) -> None:
    empty = tmp_path / "model.onnx"
    empty.touch()
    with pytest.raises(InvalidModel, match="is empty") as caught:
        ir.load(empty)
    assert caught.value.hint == "export or download the model again"
    (tmp_path / "none").mkdir()
    assert ir.folder_hint(tmp_path / "none") == "name a .onnx file"


def test_large_files_are_recognized_by_their_beginning(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    with path.open("wb") as file:
        file.write(len(HEADER).to_bytes(8, "little") + HEADER)
        file.truncate(2**31 + 100)  # sparse
    with pytest.raises(InvalidModel, match="a safetensors file"):
        ir.load(path)
    with path.open("r+b") as file:
        file.write(b"\x08\x07\x12\x00\x00\x00\x00\x00\x00")
    with pytest.raises(InvalidModel, match="larger than 2 GB"):
        ir.load(path)


def test_folders_name_their_models(tmp_path: Path) -> None:
    def hint() -> str:
        with pytest.raises(UsageError, match="is a folder") as caught:
            ir.load(tmp_path)
        return caught.value.hint or ""

    assert hint() == "name a .onnx file"
    (tmp_path / "config.json").write_text("{}")
    assert f"optimum-cli export onnx --model {tmp_path}" in hint()
    (tmp_path / "onnx").mkdir()
    (tmp_path / "onnx" / "deep.onnx").touch()
    assert hint() == f"models in it: {tmp_path}/onnx/deep.onnx"
    for name in ("a", "b", "c", "d", "e"):
        (tmp_path / f"{name}.onnx").touch()
    assert hint() == f"models in it: {tmp_path}/a.onnx, {tmp_path}/b.onnx, {tmp_path}/c.onnx and 2 more"
    (tmp_path / "saved_model.pb").touch()
    assert f"tf2onnx.convert --saved-model {tmp_path}" in hint()


@pytest.mark.parametrize("scheme", ["https", "s3", "hf"])
def test_urls_are_refused(scheme: str) -> None:
    url = f"{scheme}://example.com/model.onnx"
    for location in (url, Path(url)):
        with pytest.raises(UsageError) as caught:
            ir.load(location)
        assert caught.value.message == f"{url} is a URL, and graphopt does not download"
        assert caught.value.hint == f"curl -LO {url}"
