"""Conversion of given arrays to the element types of inputs."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphopt.errors import UsageError
from graphopt.util.conversion_warnings import warn_converted


def converted(name: str, array: np.ndarray[Any, Any], wanted: np.dtype[Any] | None) -> np.ndarray[Any, Any]:
    """``array`` in the type ``wanted``, if no value changes except by rounding.

    Args:
        name: the name of the input, for messages.
        array: the array; raw bits of the size of ``wanted`` are elements of this type.
        wanted: the element type of the input; ``None`` if numpy has no such type.

    Warns:
        ConvertedInput: the array has another element type.

    Raises:
        UsageError: a value would change, or become infinite.
    """
    if wanted is None or array.dtype == wanted:
        return array
    if wanted.kind == "O" and array.dtype.kind in "US":
        return array.astype(object) if array.dtype.kind == "U" else np.char.decode(array).astype(object)
    if array.dtype.kind == "V" and array.dtype.itemsize == wanted.itemsize:
        return array.view(wanted)  # numpy's files store element types of ml_dtypes as raw bits
    if array.dtype.kind in "fiub" and wanted.kind != "O":
        with np.errstate(over="ignore", invalid="ignore"):
            cast = array.astype(wanted)
            is_same = np.array_equal(cast.astype(array.dtype), array, equal_nan=array.dtype.kind == "f")
        is_rounded = wanted.kind not in "iub" and array.dtype.kind == "f" and _are_finite(cast, array)
        if is_same or is_rounded:
            rounded = "" if is_same else ", which rounds some of its numbers"
            warn_converted(f"input {name!r} is converted from {array.dtype} to {wanted}{rounded}")
            return cast
    named = "strings" if wanted.kind == "O" else wanted
    raise UsageError(f"input {name!r} expects {named}, the array contains {array.dtype}")


def _are_finite(cast: np.ndarray[Any, Any], original: np.ndarray[Any, Any]) -> bool:
    """Whether all finite numbers of ``original`` are finite in ``cast``."""
    return bool(np.array_equal(np.isfinite(cast.astype(np.float64)), np.isfinite(original)))
