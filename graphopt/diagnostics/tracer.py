"""The trace of this process: a :class:`Tracer` writes events, and the functions use the current one.

The current tracer belongs to a thread or task, as settings do. Without one, the functions return at once.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any, cast

from graphopt.diagnostics.chrome_trace import chrome_events
from graphopt.diagnostics.event_file import EventFile, Format, format_of
from graphopt.diagnostics.events import VERSION, Phase
from graphopt.settings import Settings
from graphopt.util.fork_safe_lock import ForkSafeLock

#: Numbers of graphs within this process.
_numbers = itertools.count(1)


class Tracer:
    """Appends events to a file. Thread-safe.

    Args:
        path: the file.
        format: its format; by default, the suffix ``.json`` selects Chrome's.
        only: the kind of event to write; by default, all.
        title: the name of the file in messages.

    Attributes:
        failure: the reason why an event could not be written; nothing is written afterwards.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        format: Format = "auto",
        *,
        only: str | None = None,
        title: str | None = None,
    ) -> None:
        self.path = Path(path).absolute()
        self.failure: str | None = None
        self._only = only
        self._title = f"the trace {path}" if title is None else title
        self._is_chrome = format_of(self.path, format) == "chrome"
        self._file = EventFile(self.path, as_array=self._is_chrome)
        self._named: set[tuple[int, int]] = set()
        self._lock = ForkSafeLock()

    @classmethod
    def of(cls, settings: Settings) -> Tracer | None:
        """The tracer of the setting ``trace``; the current one if it has the same file."""
        if settings.trace in (None, Path()):  # an empty variable
            return None
        found = _current.get()
        if found is not None and found.path == Path(settings.trace).absolute():
            return found
        return cls(settings.trace, cast(Format, settings.trace_format))

    def open(self) -> None:
        """Create the file; raises OSError if it can't be written."""
        self._file.append(())

    def write(self, event: str, phase: Phase, /, **fields: Any) -> None:
        """Append an event; a failure is recorded, because no result depends on a trace."""
        if self.failure is not None or self._only not in (None, event):
            return
        item = {
            "version": VERSION,
            "event": event,
            "phase": phase,
            "time": time.time(),
            "process": os.getpid(),
            "thread": threading.get_native_id(),
            "graph": _graph.get(),
            **fields,
        }
        with self._lock:
            try:
                self._file.append(chrome_events(item, self._named) if self._is_chrome else (item,))
            except OSError as error:
                self.failure = f"{self._title} can't be written: {error.strerror or error}"


_current: ContextVar[Tracer | None] = ContextVar("graphopt tracer", default=None)
_graph: ContextVar[int | None] = ContextVar("graphopt graph", default=None)


@contextlib.contextmanager
def tracing(tracer: Tracer | None) -> Iterator[Tracer | None]:
    """Use ``tracer`` as the current one during the ``with`` block; ``None`` keeps the current one.

    Yields:
        ``tracer`` if it was not current before; the caller reports its failures.
    """
    if tracer is None or tracer is _current.get():
        yield None
        return
    token = _current.set(tracer)
    try:
        yield tracer
    finally:
        _current.reset(token)


class Span:
    """An activity of a trace, from the beginning to the end of a ``with`` block."""

    def __init__(self, tracer: Tracer, event: str, both: dict[str, Any], start: dict[str, Any]) -> None:
        self._tracer, self._event = tracer, event
        self._both, self._start = both, start
        self._end: dict[str, Any] = {}
        self._begin = 0.0

    def ends_with(self, **fields: Any) -> None:
        """Set fields of the event at the end."""
        self._end |= fields

    def __enter__(self) -> Span:
        self._begin = time.perf_counter()
        self._tracer.write(self._event, "start", **self._both, **self._start)
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        seconds = time.perf_counter() - self._begin
        self._tracer.write(self._event, "end", **self._both, **self._end, **ended(seconds, error))


class _NoSpan:
    """The span without a tracer."""

    def ends_with(self, **fields: Any) -> None:
        """Nothing."""

    def __enter__(self) -> _NoSpan:
        return self

    def __exit__(self, *exception: object) -> None:
        pass


_NO_SPAN = _NoSpan()


def is_tracing() -> bool:
    """Whether there is a current tracer."""
    return _current.get() is not None


def span(
    event: str, /, *, start: dict[str, Any] | None = None, end: dict[str, Any] | None = None, **both: Any
) -> Span | _NoSpan:
    """The span of an activity, for a ``with`` statement.

    Args:
        event: its kind.
        start: fields of its start.
        end: fields of its end, unless :meth:`Span.ends_with` replaces them.
        both: fields of both.
    """
    tracer = _current.get()
    if tracer is None:
        return _NO_SPAN
    found = Span(tracer, event, both, start or {})
    found.ends_with(**(end or {}))
    return found


def event(kind: str, phase: Phase, /, **fields: Any) -> None:
    """Write an event."""
    tracer = _current.get()
    if tracer is not None:
        tracer.write(kind, phase, **fields)


def point(kind: str, /, **fields: Any) -> None:
    """Write an event without a duration."""
    event(kind, "point", **fields)


def ended(seconds: float, error: BaseException | None) -> dict[str, Any]:
    """The fields of every end: the duration, and the exception."""
    return {"seconds": seconds, "error": None if error is None else f"{type(error).__name__}: {error}"}


@contextlib.contextmanager
def numbered() -> Iterator[None]:
    """Give events of the ``with`` block the number of a new graph, unless they already have one."""
    if _graph.get() is not None:
        yield
        return
    token = _graph.set(next(_numbers))
    try:
        yield
    finally:
        _graph.reset(token)


@contextlib.contextmanager
def graph(name: str, nodes: int) -> Iterator[None]:
    """Describe a graph; events of the ``with`` block have its number."""
    if _current.get() is None:
        yield
        return
    with numbered():
        point("graph", name=name, nodes=nodes)
        yield
