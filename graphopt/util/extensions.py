"""What other packages add to graphopt, through entry points."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib import metadata
from typing import Any


def extensions(group: str) -> Iterator[Any]:
    """What installed packages name in an entry-point group, imported, in the order of the names."""
    for entry in sorted(_entry_points().select(group=group), key=lambda entry: entry.name):
        yield entry.load()


@cache
def _entry_points() -> Any:
    """Those of all groups: whoever looks for one has the files of every installed package read."""
    return metadata.entry_points()
