"""Start threads on systems that lack memory or threads, without waiting indefinitely.

``threading.Thread.start`` waits until the new thread has begun, without a time limit. If the thread fails
because the system has no memory left, it never reports that it has begun.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable
from typing import Any

from graphopt.errors import SystemExhausted

#: Maximum seconds until a new thread begins, on a system with many other processes.
_PATIENCE = 30.0
#: The threads that run. :mod:`threading` does not count them.
_running: set[object] = set()


def start_thread(function: Callable[..., object], *args: Any) -> None:
    """Run ``function(*args)`` in a new thread, which does not delay the exit of the process.

    Raises:
        SystemExhausted: the system has no memory for the thread, or allows no further threads.
    """
    begun = threading.Event()

    def run() -> None:
        _running.add(begun)
        begun.set()
        try:
            function(*args)
        finally:
            _running.discard(begun)

    try:
        _thread.start_new_thread(run, ())
    except RuntimeError as error:
        raise SystemExhausted(f"no thread could be started: {error}") from error
    if not begun.wait(_PATIENCE):
        raise SystemExhausted("no thread could be started: there is not enough memory")


def has_one_thread() -> bool:
    """Whether this process has no second Python thread."""
    return threading.active_count() == 1 and not _running
