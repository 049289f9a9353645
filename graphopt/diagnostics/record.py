"""The record of a run: its hints and counters. The current record belongs to a thread or task."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar

from graphopt.diagnostics import tracer
from graphopt.diagnostics.hint import Hint
from graphopt.util.fork_safe_lock import ForkSafeLock

#: Codes of hints that are given once per process.
ONCE = frozenset({"tf32-off", "tf32-verification"})


class Record:
    """Hints, each once, and counters. Thread-safe.

    Args:
        given: the codes of hints that were already given once; by default those of this process.
    """

    def __init__(self, given: set[str] | None = None) -> None:
        self._hints: dict[Hint, None] = {}
        self._counters: Counter[str] = Counter()
        self._given = _given if given is None else given
        self._lock = ForkSafeLock()

    @property
    def hints(self) -> list[Hint]:
        """The hints, in the order in which they were given."""
        with self._lock:
            return list(self._hints)

    @property
    def counters(self) -> dict[str, int]:
        """The counters by name, sorted."""
        with self._lock:
            return dict(sorted(self._counters.items()))

    def counter_line(self) -> str | None:
        """The counters as a line of a report; ``None`` without any."""
        return counter_line(self.counters)

    def hint(self, hint: Hint) -> None:
        """Add a hint, unless it was given before."""
        with self._lock:
            if hint in self._hints or hint.code in self._given:
                return
            if hint.code in ONCE:
                self._given.add(hint.code)
            self._hints[hint] = None
        tracer.point("hint", **hint.to_dict())

    def count(self, name: str, number: int = 1) -> None:
        """Add ``number`` to the counter ``name``."""
        with self._lock:
            self._counters[name] += number

    def merge(self, hints: Iterable[Hint], counters: dict[str, int]) -> None:
        """Add the hints and the counters of another record."""
        with self._lock:
            self._hints |= dict.fromkeys(hints)
            self._counters.update(counters)


def counter_line(counters: Mapping[str, int]) -> str | None:
    """``counters`` as a line of a report; ``None`` without any."""
    shown = ", ".join(f"{name} {count:,}" for name, count in counters.items())
    return f"  counters  {shown}" if shown else None


#: Codes of the hints of :data:`ONCE` that this process has given.
_given: set[str] = set()
_current: ContextVar[Record | None] = ContextVar("graphopt record", default=None)


@contextlib.contextmanager
def recorded(record: Record | None = None) -> Iterator[Record]:
    """Collect the hints and counters of the ``with`` block in a record, and then also in the outer one."""
    outer, inner = _current.get(), record or Record()
    token = _current.set(inner)
    try:
        yield inner
    finally:
        _current.reset(token)
        if outer is not None and outer is not inner:
            outer.merge(inner.hints, inner.counters)


def hint(found: Hint) -> None:
    """Add a hint to the current record, if there is one."""
    record = _current.get()
    if record is not None:
        record.hint(found)


def count(name: str, number: int = 1) -> None:
    """Add to a counter of the current record, if there is one."""
    record = _current.get()
    if record is not None:
        record.count(name, number)
