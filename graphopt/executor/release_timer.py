"""The timer that prepares the release of an executor's original, and releases it even if no run follows."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable

#: Seconds added to the delay before the original is released, so that the delay has passed on every clock.
_TICK = 0.05
#: Share of the delay after which the release is prepared: models of plans are written to files.
_PREPARATION = 0.25
#: Maximum delay that a timer accepts, in seconds.
_LONGEST_DELAY = threading.TIMEOUT_MAX - 1


class ReleaseTimer:
    """Calls one method during a delay and one after it, if their object still exists; not in a fork.

    Args:
        delay: seconds.
    """

    def __init__(self, delay: float) -> None:
        self._delay = delay
        self._since: float | None = None
        self._timers: list[threading.Timer] = []

    def start(self, since: float, prepare: Callable[[], None], release: Callable[[], None]) -> None:
        """Start the timer for two methods, unless it was started for the same time ``since``.

        A timer for an earlier time is cancelled.

        Args:
            since: the start of the delay.
            prepare: called within the delay.
            release: called after the delay.
        """
        if since == self._since or self._delay > _LONGEST_DELAY:
            return
        self._since = since
        for earlier in self._timers:
            earlier.cancel()
        self._timers = []
        for seconds, method in ((self._delay * _PREPARATION, prepare), (self._delay + _TICK, release)):
            timer = threading.Timer(seconds, _call, (weakref.WeakMethod(method),))
            timer.daemon = True
            with contextlib.suppress(RuntimeError):  # no thread is available: a run releases the original
                timer.start()
                self._timers.append(timer)
                weakref.finalize(self, timer.cancel).atexit = False


def _call(method: weakref.WeakMethod[Callable[[], None]]) -> None:
    found = method()
    if found is not None:
        found()
