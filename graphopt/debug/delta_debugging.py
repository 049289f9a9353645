"""Delta debugging: a minimal subset that still fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def minimize(items: Sequence[T], fails: Callable[[Sequence[T]], bool]) -> list[T]:
    """A subset of ``items`` that satisfies ``fails``, but does not if any one item is removed.

    ``items`` must satisfy ``fails`` (Zeller and Hildebrandt, *Simplifying and Isolating Failure-Inducing
    Input*, 2002: ddmin, complements only).
    """
    kept, parts = list(items), 2
    while kept:
        size = max(1, -(-len(kept) // parts))
        for start in range(0, len(kept), size):
            rest = kept[:start] + kept[start + size :]
            if fails(rest):
                kept, parts = rest, max(2, parts - 1)
                break
        else:
            if size == 1:
                break
            parts = min(len(kept), 2 * parts)
    return kept
