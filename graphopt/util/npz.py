"""Arrays in ``.npz`` files, under any name that a model may use."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from graphopt import publish
from graphopt.errors import UsageError
from graphopt.util.missing_files import no_such_file


def first_other(arrays: Mapping[str, Any]) -> str | None:
    """The first name whose value is not a tensor, which such a file can't store."""
    return next((name for name, value in arrays.items() if not isinstance(value, np.ndarray)), None)


def write(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write tensors as ``numpy.savez`` does, but under any name.

    The file is replaced atomically.

    Raises:
        UsageError: the file can't be written, or a value is not a tensor.
        ResourceLimit: the disk is full.
    """
    other = first_other(arrays)
    if other is not None:
        raise UsageError(f"{other!r} is no tensor, and can't be written to {path}")
    if path.exists() and not path.is_file():  # devices and pipes have no positions
        buffer = io.BytesIO()
        write_to(buffer, arrays)
        publish.write(path, buffer.getvalue())
    else:
        publish.write(path, lambda file: write_to(file, arrays))


def write_to(file: Path | io.BytesIO, arrays: Mapping[str, Any]) -> None:
    """Write tensors to a new file; raises OSError."""
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            plain = array.astype(np.str_) if array.dtype.kind == "O" else array
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, plain, allow_pickle=False)


def read(path: Path) -> Any:
    """The array in ``path``, or all arrays of an archive by name.

    Raises:
        UsageError: the file does not exist, has another format, is truncated, or contains objects.
    """
    try:
        content = np.load(path, allow_pickle=False)
        if isinstance(content, np.ndarray):
            return content
        return {key: content[key] for key in content.files}
    except FileNotFoundError as error:
        raise no_such_file(path) from error
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        if isinstance(error, OSError) and error.strerror:
            raise UsageError(f"can't read {path}: {error.strerror}") from error
        objects = "pickle" in str(error).lower() or "object" in str(error).lower()
        why = "it is damaged, or holds Python objects" if objects else str(error)
        raise UsageError(f"{path} is no numpy file of plain arrays: {why}") from error
