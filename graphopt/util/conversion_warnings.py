"""Warnings about converted inputs, recorded so that runs which reuse a result repeat them."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from contextvars import ContextVar

from graphopt.errors import ConvertedInput

_recorded: ContextVar[list[str] | None] = ContextVar("_recorded", default=None)


def warn_converted(*texts: str, stacklevel: int = 2) -> None:
    """Warn with each of ``texts``; the enclosing :func:`conversions_recorded` records them."""
    record = _recorded.get()
    for text in texts:
        if record is not None and text not in record:
            record.append(text)
        warnings.warn(text, ConvertedInput, stacklevel=stacklevel + 1)


@contextlib.contextmanager
def conversions_recorded() -> Iterator[list[str]]:
    """The texts of the warnings about converted inputs in the ``with`` block, each once.

    They are also warnings of an enclosing block.
    """
    outer, texts = _recorded.get(), list[str]()
    token = _recorded.set(texts)
    try:
        yield texts
    finally:
        _recorded.reset(token)
        if outer is not None:
            outer.extend(text for text in texts if text not in outer)
