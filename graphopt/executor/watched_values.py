"""Intermediate values that an executor profiles: another run of an instrumented model observes them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from graphopt import ir
from graphopt.executor.profiled_plan import ProfiledPlan
from graphopt.ort.devices import Device
from graphopt.specialization.instrumented_model import Observed
from graphopt.specialization.instrumented_runs import InstrumentedRuns
from graphopt.specialization.ort_values import arrays_of
from graphopt.transforms.profile.instrument import Watch
from graphopt.util.fork_safe_lock import ForkSafeLock


class AnotherThreadObserves(Exception):
    """The profile will contain the run of another thread, whose intermediate values are being observed."""


class WatchedValues:
    """Observes intermediate values in profiled runs, at the cost of another run without optimizations.

    At most one thread observes at a time; concurrent runs of other threads are not profiled. The instrumented
    model is created for each run, so that it occupies no memory between profiles. After a failure for valid
    inputs, nothing is observed any more.

    Args:
        watch: the values to observe.
        limit: the maximum number of intermediate values.
        device: the device to run the model on.

    Attributes:
        watched: the number of observed intermediate values.
        left_out: the number of candidates that are not observed.
        runs: the number of additional runs.
        seconds: their total duration, including the creation of models and sessions.
        failure: the reason why the last attempt failed, or ``None``.
    """

    def __init__(self, watch: Watch, limit: int, device: Device) -> None:
        self._watch, self._limit, self._device = watch, limit, device
        self._running = ForkSafeLock()
        self.watched = self.left_out = self.runs = 0
        self.seconds = 0.0
        self.failure: str | None = None
        self._has_ended = False

    @property
    def figures(self) -> dict[str, Any]:
        """The counts and the duration, named as in ``DebugState``."""
        return {
            "watched": self.watched,
            "left_out": self.left_out,
            "watch_runs": self.runs,
            "watch_seconds": self.seconds,
        }

    def observe(
        self,
        original: ir.Model,
        feeds: Mapping[str, Any],
        profiled: Callable[[], ProfiledPlan | None],
        *,
        valid: bool,
    ) -> Observed | None:
        """Run the plan ``profiled``, or else ``original``; ``None`` if nothing is observed.

        Args:
            original: the original model.
            feeds: the inputs.
            profiled: returns the profiled plan, if there is one.
            valid: whether the original has run on ``feeds``.

        Raises:
            AnotherThreadObserves: another thread is in this method.
        """
        if self._watch is Watch.INPUTS or self._has_ended:
            return None
        if not self._running.acquire(blocking=False):
            raise AnotherThreadObserves
        begin = time.perf_counter()
        try:
            plan = profiled()
            if plan is not None:
                found = plan.take_observed(plan.run(arrays_of(feeds)))
            else:
                with InstrumentedRuns(original, self._device, self._watch, self._limit) as runs:
                    self.watched, self.left_out = runs.watched, runs.left_out
                    found = runs.run(arrays_of(feeds)).observed
        except Exception as error:  # the plans do not depend on these observations
            self.failure = f"intermediate values are not watched: {str(error) or type(error).__name__}"
            self._has_ended = valid
            return None
        else:
            self.failure = None
            return found
        finally:
            self.runs += 1
            self.seconds += time.perf_counter() - begin
            self._running.release()
