"""Arrays in ``.npz`` files, under any name that a model may use."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from graphopt.errors import UsageError


def first_other(arrays: Mapping[str, Any]) -> str | None:
    """The first name whose value is no tensor, which such a file can't hold."""
    return next((name for name, value in arrays.items() if not isinstance(value, np.ndarray)), None)


def write(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write tensors as ``numpy.savez`` does, which can't take every name that a value may have.

    Raises:
        UsageError: the file can't be written, or a value is no tensor.
    """
    other = first_other(arrays)
    if other is not None:
        raise UsageError(f"{other!r} is no tensor, and can't be written to {path}")
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with zipfile.ZipFile(temporary, "w") as archive:
            for name, array in arrays.items():
                plain = array.astype(np.str_) if array.dtype.kind == "O" else array
                with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                    np.lib.format.write_array(file, plain, allow_pickle=False)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise UsageError(f"can't write {path}: {error.strerror or error}") from error
