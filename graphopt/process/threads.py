"""Start threads on systems that lack memory or threads, without waiting indefinitely.

``threading.Thread.start`` waits until the new thread has begun, without a time limit. If the thread fails
because the system has no memory left, it never reports that it has begun.
"""

from __future__ import annotations

import _thread
import os
import sys
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

from graphopt.errors import SystemExhausted

#: Maximum seconds until a new thread begins, on a system with many other processes.
_PATIENCE = 30.0
#: Seconds between two checks whether a thread has failed before it began.
_STEP = 0.05
#: The next step if threads do not suffice.
THREADS_HINT = "end other processes, or raise the limits on threads and memory (ulimit)"
#: The threads that run. :mod:`threading` does not count them.
_running: set[object] = set()
#: Locks for the hook of :func:`_begins`, by process number: a fork may have a copy of a locked lock.
_hooking: defaultdict[int, threading.Lock] = defaultdict(threading.Lock)


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
        is_begun = _begins(run, begun)
    except RuntimeError as error:
        raise SystemExhausted(f"no thread could be started: {error}", hint=THREADS_HINT) from error
    if not is_begun:
        raise SystemExhausted("no thread could be started: there is not enough memory", hint=THREADS_HINT)


def _begins(run: Callable[[], object], begun: threading.Event) -> bool:
    """Start a thread that sets ``begun``; returns whether it begins.

    A thread without memory for its first frame reports a MemoryError to ``sys.unraisablehook``, which would
    print it. The hook is a builtin function, because the thread has no memory for another frame, either.

    Raises:
        RuntimeError: the thread can't be started.
    """
    failures: deque[Any] = deque()
    with _hooking[os.getpid()]:
        hook, sys.unraisablehook = sys.unraisablehook, failures.append
        try:
            _thread.start_new_thread(run, ())
            end = time.monotonic() + _PATIENCE
            while not begun.wait(_STEP) and time.monotonic() < end:
                if any(failure.object is run for failure in failures):
                    break
        finally:
            sys.unraisablehook = hook
    for failure in failures:
        if begun.is_set() or failure.object is not run:
            hook(failure)
    return begun.is_set()


def has_one_thread() -> bool:
    """Whether this process has no second Python thread."""
    return threading.active_count() == 1 and not _running
