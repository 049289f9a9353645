"""Parallel calls of programs, which end at the first failure, an interrupt, or the end of the process."""

from __future__ import annotations

import atexit
import contextlib
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from threading import Event, Thread

from graphopt.errors import ResourceLimit

#: A call; it has to return soon after the event is set.
Call = Callable[[Event], None]
#: Maximum time, in seconds, to wait for the end of stopped calls.
_PATIENCE = 5.0


def run_all(calls: Sequence[Call], workers: int, finished: Callable[[int], None] = lambda done: None) -> None:
    """Run all ``calls``, in order of start.

    After a failure or an interrupt, and at the exit of the process, running calls are stopped. The threads of
    :mod:`concurrent.futures` would delay the exit until all calls have finished.

    Args:
        calls: the calls.
        workers: maximum number of simultaneous calls.
        finished: is called with the number of finished calls after each of them, in this thread.

    Raises:
        ResourceLimit: no thread can be started.
        Exception: the first exception of a call.
    """
    stop = Event()
    pending: SimpleQueue[Call] = SimpleQueue()
    results: SimpleQueue[BaseException | None] = SimpleQueue()
    for call in calls:
        pending.put(call)

    def work() -> None:
        while not stop.is_set():
            try:
                call = pending.get_nowait()
            except Empty:
                return
            try:
                call(stop)
            except BaseException as error:  # raised again in the thread of the caller
                results.put(error)
            else:
                results.put(None)

    threads = [Thread(target=work, daemon=True) for _ in range(min(workers, len(calls)))]

    def end() -> None:
        stop.set()
        for thread in threads:
            with contextlib.suppress(RuntimeError):  # raised for a thread that was not started
                thread.join(_PATIENCE)

    atexit.register(end)
    try:
        _start(threads)
        for done in range(1, len(calls) + 1):
            error = results.get()
            if error is not None:
                raise error
            finished(done)
    finally:
        end()
        atexit.unregister(end)


def _start(threads: Sequence[Thread]) -> None:
    """Start as many of ``threads`` as the system allows, at least one."""
    for number, thread in enumerate(threads):
        try:
            thread.start()
        except RuntimeError as error:
            if number == 0:
                raise ResourceLimit(f"no thread could be started: {error}") from error
            return
