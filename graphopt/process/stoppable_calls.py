"""Parallel calls of programs, which end at the first failure, an interrupt, or the end of the process."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from threading import Event

from graphopt.errors import ResourceLimit
from graphopt.process.threads import start_thread

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

    def work(ended: Event) -> None:
        try:
            take_calls()
        finally:
            ended.set()

    def take_calls() -> None:
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

    running: list[Event] = []

    def end() -> None:
        stop.set()
        for ended in running:
            ended.wait(_PATIENCE)

    atexit.register(end)
    try:
        _start(work, min(workers, len(calls)), running)
        for done in range(1, len(calls) + 1):
            error = results.get()
            if error is not None:
                raise error
            finished(done)
    finally:
        end()
        atexit.unregister(end)


def _start(work: Callable[[Event], None], count: int, running: list[Event]) -> None:
    """Start up to ``count`` threads, at least one, and append the event of each to ``running``."""
    for number in range(count):
        ended = Event()
        try:
            start_thread(work, ended)
        except ResourceLimit:
            if number == 0:
                raise
            return
        running.append(ended)
