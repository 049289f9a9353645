"""Silence onnxruntime: its default logger, and the output of its Python code."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType


@contextlib.contextmanager
def quiet(onnxruntime: ModuleType) -> Iterator[None]:
    """Silence onnxruntime's default logger and the output of its Python code."""
    with unlogged(onnxruntime), contextlib.redirect_stdout(io.StringIO()):
        yield


@contextlib.contextmanager
def unlogged(onnxruntime: ModuleType) -> Iterator[None]:
    """Silence onnxruntime's default logger, which reports failed allocations, for example."""
    onnxruntime.set_default_logger_severity(4)
    try:
        yield
    finally:
        onnxruntime.set_default_logger_severity(2)
