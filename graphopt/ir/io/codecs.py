"""The forms that a model's file can have, told by its suffix."""

from __future__ import annotations

import os
from enum import Enum
from pathlib import Path


class FileForm(Enum):
    """How a file holds a model."""

    ONNX = "ONNX"
    JSON_IR = "JSON IR"
    ONNX_JSON = "onnx's own JSON"
    TEXT = "ONNX text"


#: Files with other suffixes are read as ONNX.
SUFFIXES = {
    ".onnx": FileForm.ONNX,
    ".json": FileForm.JSON_IR,
    ".onnxjson": FileForm.ONNX_JSON,
    ".onnxtxt": FileForm.TEXT,
    ".txt": FileForm.TEXT,
}


def form_of(path: str | os.PathLike[str]) -> FileForm:
    """The form of the file at ``path``."""
    return SUFFIXES.get(Path(path).suffix, FileForm.ONNX)
