"""A lock on a folder, for critical sections of concurrent writers."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from graphopt.publish.temporary_folders import fcntl, release, try_lock

#: Seconds between attempts to acquire the lock.
_STEP = 0.005


@contextlib.contextmanager
def locked(folder: Path, seconds: float = 30.0) -> Iterator[bool]:
    """Hold the lock on ``folder``, which excludes other threads and processes, during the ``with`` block.

    Args:
        folder: an existing folder. The folder itself is locked, so that no lock file remains.
        seconds: maximum time to wait for the lock.

    Yields:
        Whether the lock was acquired. False if others hold the lock for too long, or if the file system, such
        as NFS, does not support locks on folders; the block must be safe without the lock.
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
