"""Load models from files of any registered format.

External tensors remain on disk, memory-mapped, until they are read.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import onnx

from graphopt.errors import GraphoptError, InvalidModel, UsageError
from graphopt.ir._onnx_ir_without_sympy import onnx_ir
from graphopt.ir.constants import DATA_FILES
from graphopt.ir.io.codecs import ONNX, codec_of
from graphopt.ir.io.data_of import DataOf
from graphopt.ir.io.external_data import Folders
from graphopt.ir.io.foreign_formats import HEAD, folder_error, recognized
from graphopt.ir.io.old_data import OldData
from graphopt.ir.io.proto_conversion import EXPORT_AGAIN, check_header, from_proto_in
from graphopt.util.file_search import mentions
from graphopt.util.missing_files import no_such_file

#: Maximum number of times that a model is loaded again because another process replaced it.
_RETRIES = 100


def load(
    path: str | os.PathLike[str],
    *,
    allow_external: Sequence[str | os.PathLike[str]] = (),
    data_of: DataOf | None = None,
) -> onnx_ir.Model:
    """Load a model from a file, whose suffix selects the format.

    ``.json`` is the JSON IR, ``.onnxjson`` onnx's own JSON, ``.onnxtxt`` and ``.txt`` are ONNX text, and any
    other suffix means ONNX.

    Unsorted graphs are sorted. External data is memory-mapped. The data must exist in the model's folder or a
    folder of ``allow_external``, and be long enough.

    Args:
        path: the file.
        allow_external: further folders that may contain the external data.
        data_of: the argument ``data_of`` with which the model was saved, if any.

    Raises:
        UsageError: the path does not exist, is a folder or can't be read.
        InvalidModel: the file is not a model, is truncated, violates the ONNX specification (see
            :func:`graphopt.ir.validation.validate`), or its data is missing.
    """
    path = Path(path)
    folders = [Path(folder) for folder in allow_external]
    for retries_left in reversed(range(_RETRIES)):
        before = identity(path)
        try:
            model = from_proto_in(_parse(path), Folders(path.parent, folders, data_of))
            # another process may have replaced the model, and its data under the same name: read both again
            if not retries_left or not model.graph.meta.get(DATA_FILES) or identity(path) == before:
                return model
        except InvalidModel as error:
            if retries_left and identity(path) != before:  # another process replaced it and removed its data
                continue
            if str(path) in error.message:
                raise
            raise InvalidModel(f"{path}: {error.message}", hint=error.hint) from error
    raise AssertionError("the last iteration returns or raises")


def identity(path: Path) -> tuple[int, ...] | None:
    """A key that differs between successive files at ``path``; ``None`` without a file."""
    try:
        status = path.stat()
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def data_files(path: str | os.PathLike[str], name: str | None = None) -> list[Path]:
    """The external data files of the model at ``path``; empty if it can't be read.

    Args:
        path: the model's file.
        name: only search for a data file of this name, which avoids parsing most models.
    """
    path = Path(path)
    try:
        if name is not None and path.is_file() and not mentions(path, name):
            return []
    except OSError:
        return []
    return list(old_data(path).files)


def old_data(path: Path) -> OldData:
    """The external data of the model at ``path``; empty if it can't be read."""
    try:
        return OldData.of(_parse(path), path.parent)
    except (GraphoptError, OSError):
        return OldData()


def metadata_of(path: str | os.PathLike[str]) -> dict[str, str] | None:
    """The metadata of the model at ``path``, without validating it; ``None`` if it can't be read."""
    try:
        return {entry.key: entry.value for entry in _parse(Path(path)).metadata_props}
    except (GraphoptError, OSError):
        return None


def check_is_model(path: str | os.PathLike[str]) -> None:
    """Check that ``path`` names a file, and not a file of another known kind, without parsing it.

    Raises:
        UsageError: the path does not exist, is a folder or can't be read.
        InvalidModel: the file has another format.
    """
    path = Path(path)
    other = _recognized_error(path, _read(path)) if codec_of(path) is ONNX else None
    if other is not None:
        raise other


def _parse(path: Path) -> onnx.ModelProto:
    data = _read(path)
    if not data:
        raise InvalidModel(f"{path} is empty", hint=EXPORT_AGAIN)
    try:
        proto = codec_of(path).load(data, str(path))
    except InvalidModel as error:
        other = _recognized_error(path, data)
        if other is None:
            raise
        raise other from error
    check_header(proto, str(path))
    return proto


def _recognized_error(path: Path, data: bytes) -> InvalidModel | None:
    """The error for a file of a known kind that is not a model; ``None`` if the kind is unknown."""
    kind = recognized(path, data)
    if kind is None:
        return None
    return InvalidModel(f"{path} is not an ONNX model, but {kind.name}", hint=kind.hint)


def _read(path: Path) -> bytes:
    try:
        if not path.exists():
            raise no_such_file(path)
        if path.is_dir():
            raise folder_error(path)
        if not path.is_file():
            raise UsageError(
                f"{path} is a device or a pipe, not a model", hint="save its contents to a file first"
            )
        if path.stat().st_size >= 2**31:
            with path.open("rb") as file:
                head = file.read(HEAD)
            raise _recognized_error(path, head) or InvalidModel(
                f"{path} is larger than 2 GB, which no ONNX file can be",
                hint="models of that size keep their weights in external data",
            )
        return path.read_bytes()
    except (OSError, ValueError) as error:
        raise UsageError(f"can't read {path}: {getattr(error, 'strerror', None) or error}") from error
