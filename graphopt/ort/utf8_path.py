"""Paths for onnxruntime, which reads them as UTF-8 regardless of the locale."""

from __future__ import annotations

import os


def utf8_path(path: str | os.PathLike[str]) -> str:
    """``path`` decoded from UTF-8.

    In a locale without non-ASCII characters, such as ``C``, Python decodes the bytes of such characters to
    surrogates, which onnxruntime refuses.

    >>> utf8_path("model.onnx")
    'model.onnx'
    """
    return os.fsencode(path).decode("utf-8", "surrogateescape")
