"""Limits on the time and memory of one run for computing parts of its model: folding and shape facts.

A run has one object, in its context. Each computation records its time, and checks the budget first.
When the budget is used up, the run continues without further computations.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import field

from graphopt.util.lazy_dataclass import dataclass
from graphopt.util.text_tables import counted, human_bytes

#: The beginning of the remark that the time limit was reached.
_TIME_LIMIT = "--time-limit"


def is_cut_short(remarks: Iterable[str]) -> bool:
    """Whether ``remarks`` state that the time limit was reached, so that another run may compute more."""
    return any(remark.startswith(_TIME_LIMIT) for remark in remarks)


@dataclass
class Budget:
    """The limits, and the computations that were omitted because of them.

    ``with budget:`` counts the time of its block; blocks may be nested.

    Attributes:
        seconds: limit for folding and shape facts together; ``None`` for no limit.
        nbytes: limit on the memory of computed constants; ``None`` for no limit.
        unfolded: nodes not folded because of the time limit.
        unknown: number of nodes without inferred facts because of the time limit.
        oversized: nodes not folded because of the memory limit.
    """

    seconds: float | None = None
    nbytes: int | None = None
    unfolded: set[str] = field(default_factory=set)
    unknown: int = 0
    oversized: set[str] = field(default_factory=set)
    _spent: float = 0.0
    _since: float | None = None
    _depth: int = 0

    @property
    def left(self) -> float | None:
        """Seconds that remain; ``None`` for no limit."""
        if self.seconds is None:
            return None
        running = 0.0 if self._since is None else time.perf_counter() - self._since
        return max(0.0, self.seconds - self._spent - running)

    @property
    def over(self) -> bool:
        """Whether the time limit is reached."""
        return self.left == 0

    def __enter__(self) -> None:
        if not self._depth:
            self._since = time.perf_counter()
        self._depth += 1

    def __exit__(self, *exception: object) -> None:
        self._depth -= 1
        if not self._depth and self._since is not None:
            self._spent += time.perf_counter() - self._since
            self._since = None

    def allows(self, nbytes: int) -> bool:
        """Whether ``nbytes`` are within the memory limit."""
        return self.nbytes is None or nbytes <= self.nbytes

    def remarks(self) -> list[str]:
        """Remarks about the omitted computations, for the report."""
        messages, interrupted = [], []
        if self.unfolded:
            interrupted.append(f"{counted(len(self.unfolded), 'node')} not folded")
        if self.unknown:
            interrupted.append(f"nothing inferred about {counted(self.unknown, 'node')}")
        if interrupted:
            messages.append(f"{_TIME_LIMIT} {self.seconds:g} was reached: {', '.join(interrupted)}")
        if self.oversized:
            nodes, limit = counted(len(self.oversized), "node"), human_bytes(self.nbytes or 0)
            messages.append(f"{nodes} not folded: that would take more than --memory-limit, {limit}")
        return messages
