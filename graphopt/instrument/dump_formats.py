"""The formats of dumps, and the suffixes of their files."""

from __future__ import annotations

from typing import Literal

Format = Literal["text", "onnx", "dot"]

#: Suffixes of files by format: the one that dumps write, then others that select the format.
SUFFIXES: dict[Format, tuple[str, ...]] = {
    "text": (".txt", ".diff"),
    "onnx": (".onnx",),
    "dot": (".dot", ".gv"),
}


def format_by_suffix(suffix: str) -> Format | None:
    """The format of files with ``suffix``, such as ``.txt``; ``None`` for other suffixes."""
    return next((form for form, suffixes in SUFFIXES.items() if suffix in suffixes), None)
