"""The differences between a key and the nearest key of a stored result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from graphopt.result_cache.stored_result import StoredResult

#: The part that describes the file of a result; a key without this part represents all forms.
FORM = "form"


class Difference(NamedTuple):
    """A part of two keys that differs; ``None`` where a key lacks the part."""

    part: str
    here: str | None
    there: str | None


def differences(here: Mapping[str, str], there: Mapping[str, str]) -> list[Difference]:
    """The parts that differ between two keys."""
    names = dict.fromkeys([*here, *there])
    pairs = [Difference(name, here.get(name), there.get(name)) for name in names if name != FORM]
    return [pair for pair in pairs if pair.here != pair.there]


def nearest(
    parts: Mapping[str, str], results: Iterable[StoredResult]
) -> tuple[StoredResult, list[Difference]] | None:
    """The stored result with the fewest differences, among results of the same model if there are any."""
    found: tuple[StoredResult, list[Difference]] | None = None
    best = (2, 0)
    for result in results:
        try:
            pairs = differences(parts, result.parts)
        except (OSError, ValueError):  # removed or damaged
            continue
        distance = (int(any(pair.part == "model" for pair in pairs)), len(pairs))
        if distance < best:
            found, best = (result, pairs), distance
    return found
