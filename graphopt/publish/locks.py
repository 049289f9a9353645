"""A lock on a folder, for steps that several writers must not do at once."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from graphopt.publish.temporaries import fcntl, release, try_lock

#: Seconds between two attempts to get the lock.
_STEP = 0.005


@contextlib.contextmanager
def locked(folder: Path, seconds: float = 30.0) -> Iterator[bool]:
    """Hold the lock on ``folder``, which threads and processes exclude each other by, during the block.

    Args:
        folder: exists. The lock is on the folder itself, so that no file remains.
        seconds: the longest time to wait for the lock.

    Yields:
        Whether the lock is held. It is not if others hold it for too long, or where the file system has no
        locks on folders, as NFS; the block has to be safe without it.
    """
    descriptor = _opened(folder)
    if descriptor is None:
        yield False
        return
    try:
        end = time.monotonic() + seconds
        while (is_held := try_lock(descriptor)) is False and time.monotonic() < end:
            time.sleep(_STEP)
        yield bool(is_held)
    finally:
        release(descriptor)


def _opened(folder: Path) -> int | None:
    if fcntl is None:
        return None
    try:
        return os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
