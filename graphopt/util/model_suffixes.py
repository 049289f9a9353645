"""The suffixes of files of models; the formats are in :mod:`graphopt.ir.io.codecs`."""

from __future__ import annotations

ONNX, JSON_IR, ONNX_JSON, TEXT = (".onnx",), (".json",), (".onnxjson",), (".onnxtxt", ".txt")

_known = [*ONNX, *JSON_IR, *ONNX_JSON, *TEXT]


def suffixes() -> tuple[str, ...]:
    """The suffixes of all formats of models, ``.onnx`` first."""
    return tuple(_known)


def add_suffixes(new: tuple[str, ...]) -> None:
    """Add the suffixes of a format that have not been added yet."""
    _known.extend(suffix for suffix in new if suffix not in _known)
