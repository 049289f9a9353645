"""Extensions of graphopt by other packages, through entry points."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib import metadata
from typing import Any


def extensions(group: str) -> Iterator[Any]:
    """The imported objects that installed packages register in an entry-point group, in order of name."""
    for entry in sorted(_entry_points().select(group=group), key=lambda entry: entry.name):
        yield entry.load()


@cache
def _entry_points() -> Any:
    """The entry points of all groups; reading them opens files of every installed package."""
    return metadata.entry_points()
