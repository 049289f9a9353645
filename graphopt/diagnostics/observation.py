"""Observed activities: traced, with their hints and counters, and with a warning if the trace fails."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator

from graphopt.diagnostics import tracer
from graphopt.diagnostics.record import Record, recorded
from graphopt.diagnostics.tracer import Tracer
from graphopt.settings import Settings


def _warn(text: str) -> None:
    warnings.warn(text, RuntimeWarning, stacklevel=5)


@contextlib.contextmanager
def observed(
    kind: str,
    name: str,
    settings: Settings,
    warn: Callable[[str], object] = _warn,
    record: Record | None = None,
) -> Iterator[Record]:
    """Trace the ``with`` block as the setting ``trace`` requests, and yield its hints and counters.

    Args:
        kind: ``command`` or ``operation``.
        name: its name.
        settings: the settings.
        warn: called once if the trace can't be written; the block is not affected.
        record: the record of hints and counters; by default a new one.
    """
    with tracer.tracing(Tracer.of(settings)) as opened:
        try:
            with tracer.span(kind, name=name), recorded(record) as found:
                try:
                    yield found
                finally:
                    if found.counters:
                        tracer.point("counters", values=found.counters)
        finally:
            if opened is not None and opened.failure is not None:
                warn(opened.failure)
