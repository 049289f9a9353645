"""Locks that are free in a fork of the process."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from typing import Any


class ForkSafeLock:
    """A lock that is free in a fork of the process, where the thread that holds it does not exist.

    An ordinary lock that another thread holds during a fork is never released in the fork. Data that this
    lock protects must be valid at any time, because the holder may not have finished.

    Args:
        kind: creates the lock of one process.
    """

    def __init__(self, kind: Callable[[], Any] = threading.Lock) -> None:
        self._kind = kind
        self._locks: dict[int, Any] = {os.getpid(): kind()}

    def acquire(self, blocking: bool = True) -> bool:
        """Acquire the lock; returns whether it was acquired."""
        process = os.getpid()
        lock = self._locks.get(process)
        if lock is None:  # another thread of the fork may create one at the same time
            lock = self._locks.setdefault(process, self._kind())
        acquired: bool = lock.acquire(blocking)
        return acquired

    def release(self) -> None:
        """Release the lock; does nothing in a fork by the thread that holds it."""
        lock = self._locks.get(os.getpid())
        with contextlib.suppress(RuntimeError):  # this process did not acquire the lock
            if lock is not None:
                lock.release()

    def __enter__(self) -> ForkSafeLock:
        self.acquire()
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()
