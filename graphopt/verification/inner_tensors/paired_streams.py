"""Pair the values of two chunked runs as soon as both are computed, in bounded memory."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from graphopt import publish
from graphopt.verification.output_comparison import nbytes

#: Maximum size of unpaired values in memory, in bytes; further ones are stored in files.
_KEPT = 1 << 28

Stream = Iterator[dict[str, Any]]


def paired(a: Stream, b: Stream, partners: Mapping[str, str]) -> Iterator[tuple[str, Any, Any]]:
    """The pairs of values of two runs, as (name in ``a``, value of ``a``, value of ``b``).

    The run with less progress continues, so that few values are unpaired at a time. Unmatched values are
    discarded.

    Args:
        a, b: values by name, chunk by chunk, at least one in each.
        partners: the names of matched values of ``b``, by name in ``a``, in the order of ``a``.
    """
    back = {twin: name for name, twin in partners.items()}
    position = {name: index for index, name in enumerate(partners)}
    with Waiting() as ours, Waiting() as theirs:
        reached_a = reached_b = 0
        a_left = b_left = True
        while a_left or b_left:
            if a_left and (reached_a <= reached_b or not b_left):
                values = next(a, {})
                a_left = bool(values)
                for name in [name for name in values if name in partners]:
                    reached_a = max(reached_a, position[name] + 1)
                    if partners[name] in theirs:
                        yield name, values[name], theirs.pop(partners[name])
                    elif b_left:
                        ours.put(name, values[name])
            else:
                values = next(b, {})
                b_left = bool(values)
                for name, twin in [(back[twin], twin) for twin in values if twin in back]:
                    reached_b = max(reached_b, position[name] + 1)
                    if name in ours:
                        yield name, ours.pop(name), values[twin]
                    elif a_left:
                        theirs.put(twin, values[twin])


class Waiting:
    """Unpaired values, in memory up to a limit, and then in files."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._files: dict[str, Path] = {}
        self._bytes = self._count = 0
        self._folder: publish.ScratchFolder | None = None

    def __enter__(self) -> Waiting:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._folder is not None:
            self._folder.close()

    def __contains__(self, name: str) -> bool:
        return name in self._values or name in self._files

    def put(self, name: str, value: Any) -> None:
        """Store ``value`` until :meth:`pop`."""
        size = nbytes(value)
        if self._bytes + size <= _KEPT:
            self._values[name] = value
            self._bytes += size
            return
        if self._folder is None:
            self._folder = publish.ScratchFolder()
        self._count += 1
        path = self._files[name] = self._folder.path / str(self._count)
        with open(path, "wb") as file:
            pickle.dump(value, file, protocol=5)

    def pop(self, name: str) -> Any:
        """Return and remove the value."""
        if name in self._values:
            value = self._values.pop(name)
            self._bytes -= nbytes(value)
            return value
        path = self._files.pop(name)
        with open(path, "rb") as file:
            value = pickle.load(file)
        path.unlink()
        return value
