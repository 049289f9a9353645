"""Errors in a document, with their paths."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from graphopt.errors import nearest_names

_PLAIN = re.compile(r"[^\W\d][\w-]*")
_SHOWN = 60


class Fault(Exception):
    """An error in a document. Readers add its path while it propagates."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self._steps: list[str | int] = []

    def under(self, *steps: str | int) -> Fault:
        """This fault with ``steps``, from the enclosing object or list, prepended to its path."""
        self._steps[:0] = steps
        return self

    def __str__(self) -> str:
        path = "".join(map(_step, self._steps)).removeprefix(".")
        return f"{path}: {self.args[0]}" if path else self.args[0]


def _step(step: str | int) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    return f".{step}" if len(step) <= _SHOWN and _PLAIN.fullmatch(step) else f"[{shown(step)}]"


def shown(item: Any) -> str:
    """``item`` as JSON, truncated if it is long."""
    if isinstance(item, dict):
        return "an object"
    if isinstance(item, list):
        return "a list"
    return _truncated(json.dumps(item))


def quoted(text: str) -> str:
    """``text`` in single quotes, truncated if it is long."""
    return _truncated(repr(text))


def _truncated(text: str) -> str:
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def nearest(name: str, known: Iterable[str]) -> str:
    """A suggestion for an unknown ``name``, to be appended to the message."""
    close = nearest_names(name[:_SHOWN], known)
    return f"; did you mean {close[0]!r}?" if close else ""


def expect(item: Any, type_: type, expected: str) -> Any:
    """``item`` if it is of ``type_``. Raises :class:`Fault` otherwise."""
    if type(item) is not type_:  # True is also an int
        raise Fault(f"expects {expected}, found {shown(item)}")
    return item


def expect_int(item: Any) -> int:
    """``item`` if it is an integer of at most 64 bits."""
    number: int = expect(item, int, "an integer")
    if not -(1 << 63) <= number < 1 << 63:
        raise Fault(f"{shown(number)} does not fit into 64 bits")
    return number
