"""Pauses of Python's garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from graphopt.process.fork_safety import is_claimed


@contextmanager
def collection_paused() -> Iterator[None]:
    """Pause the garbage collector in the ``with`` block, for code that creates many objects and discards few.

    No effect if graphopt is a library of another program, whose collector and objects remain unchanged: the
    process must be claimed (:mod:`graphopt.process.fork_safety`). At the end, all objects count as old, so
    that the next search for young garbage does not visit each of them. Blocks may be nested, and may run in
    several threads: the collector resumes at the end of a block that paused it.
    """
    if not is_claimed():
        yield
        return
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if not gc.get_freeze_count():  # objects that the process froze stay frozen
                gc.freeze()
                gc.unfreeze()  # to the oldest generation
            gc.enable()
