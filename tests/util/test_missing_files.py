"""The error for a missing file names similar files."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphopt.util.missing_files import no_such_file


@pytest.mark.parametrize(
    ("name", "kind", "message", "hint"),
    [
        ("modl.onnx", "file", "no such file: {0}/modl.onnx", "nearest in {0}: model.onnx"),
        ("model.gop", "folder", "no such folder: {0}/model.gop", "nearest in {0}: model.gopt"),
        (
            "model.gop",
            "file or folder",
            "no such file or folder: {0}/model.gop",
            "nearest in {0}: model.gopt, model.onnx",
        ),
        ("zzz", "file", "no such file: {0}/zzz", "no file in {0} has a similar name"),
        ("none/a.onnx", "file", "no such file: {0}/none/a.onnx", "there is no folder {0}/none"),
    ],
)
def test_hint(tmp_path: Path, name: str, kind: str, message: str, hint: str) -> None:
    (tmp_path / "model.onnx").touch()
    (tmp_path / "model.gopt").mkdir()
    error = no_such_file(tmp_path / name, kind)
    assert error.message == message.format(tmp_path)
    assert error.hint == hint.format(tmp_path)


def test_url() -> None:
    assert "is a URL" in no_such_file(Path("https://a.b/m.onnx")).message
