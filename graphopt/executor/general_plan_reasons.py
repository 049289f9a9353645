"""The reasons why runs used the general or the profiled plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from graphopt.executor.plan import Plan

#: Maximum number of runs, per reason, that are compared with all guards.
_EXPLAINED = 20


class GeneralPlanReasons:
    """Counts the reasons. The caller serializes calls of :meth:`add`."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._explained: Counter[str] = Counter()

    def text(self, reason: str, feeds: Mapping[str, Any], plans: Sequence[Plan]) -> str:
        """``reason``; for its first runs, with a violation of the nearest guard of ``plans``."""
        if self._explained[reason] >= _EXPLAINED:
            return reason
        near = min((plan.guard.explain(feeds) for plan in plans), key=len, default=[])
        return f"{reason}: {near[0]}" if near else reason

    def add(self, reason: str, text: str) -> None:
        """Count a run for ``reason``, whose :meth:`text` is ``text``."""
        self._explained[reason] += 1
        self.counts[text] += 1
