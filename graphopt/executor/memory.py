"""What an executor holds besides its optimized plans: the original, and the plans that run for all inputs."""

from __future__ import annotations

import threading
from collections.abc import Callable

from graphopt.executor.maker import Maker
from graphopt.executor.original import Original
from graphopt.executor.plan import Plan


class Memory:
    """The original and what is made of it for all inputs, when that is needed first.

    Each of the two plans has a lock of its own, so that nobody waits for a plan that he does not run.

    Args:
        original: the original.
        maker: makes the plans.
        delay: seconds after the last plan before the original may go.
        clock: seconds.
        is_last: the general plan is the last one that is made: nothing will be specialized.

    Attributes:
        original: the original.
        kept: why it could not be let go when it was time.
    """

    def __init__(
        self, original: Original, maker: Maker, delay: float, clock: Callable[[], float], *, is_last: bool
    ) -> None:
        self.original = original
        self.kept: str | None = None
        self._maker, self._delay, self._clock, self._is_last = maker, delay, clock, is_last
        self._general: Plan | None = None
        self._fallback: Plan | None = None
        self._general_lock, self._fallback_lock = threading.Lock(), threading.Lock()
        self._last_made: float | None = None

    @property
    def plans(self) -> list[Plan]:
        """Those that were made, and are held."""
        return [plan for plan in (self._general, self._fallback) if plan is not None]

    def general(self) -> Plan:
        """The plan that runs for inputs that nothing is specialized for."""
        plan = self._general
        if plan is None:
            with self._general_lock:
                plan = self._general
                if plan is None:
                    plan = self._general = self._maker.general(self.original.read())
                    if self._is_last:
                        self.note_made()
        return plan

    def fallback(self) -> Plan:
        """The plan that runs where optimizing is off; the general one if nothing else is left."""
        plan = self._fallback
        if plan is None:
            with self._fallback_lock:
                plan = self._fallback
                if plan is None:
                    original = self.original.find()
                    if original is None:
                        return self.general()
                    plan = self._fallback = self._maker.fallback(original)
        return plan

    def note_made(self) -> None:
        """The delay begins anew: a plan was made."""
        self._last_made = self._clock()

    @property
    def is_due(self) -> bool:
        """Whether it is time to let the original go: strictly more than the delay has passed."""
        made = self._last_made
        return made is not None and self._clock() - made > self._delay

    def release(self) -> None:
        """Let go what only further specializations need, and where optimizing is off.

        The general plan has to be there by then. If it can't be made, that is noted, and the original stays
        for another delay: no run fails because of this.
        """
        try:
            self.general()
        except Exception as error:  # whatever optimizing raises
            self.kept = str(error) or type(error).__name__
            self.note_made()
            return
        self.kept = None
        self._fallback = None
        self.original.release()
