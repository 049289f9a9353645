"""The timer that releases the original of an executor, even if no further run follows."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable

#: Seconds added to the delay before the original is released, so that the delay has passed on every clock.
_TICK = 0.05
#: Maximum delay that a timer accepts, in seconds.
_LONGEST_DELAY = threading.TIMEOUT_MAX - 1


class ReleaseTimer:
    """Calls a method after a delay, if its object still exists; in a fork, the timer does not run.

    Args:
        delay: seconds.
    """

    def __init__(self, delay: float) -> None:
        self._delay = delay
        self._since: float | None = None

    def start(self, since: float, release: Callable[[], None]) -> None:
        """Start the timer for the method ``release``, unless it was started for the same time ``since``."""
        if since == self._since or self._delay > _LONGEST_DELAY:
            return
        self._since = since
        method = weakref.WeakMethod(release)
        timer = threading.Timer(self._delay + _TICK, _call, (method,))
        timer.daemon = True
        with contextlib.suppress(RuntimeError):  # no thread available: the next run releases the original
            timer.start()
            weakref.finalize(self, timer.cancel).atexit = False


def _call(method: weakref.WeakMethod[Callable[[], None]]) -> None:
    found = method()
    if found is not None:
        found()
