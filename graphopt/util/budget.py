"""How much time and memory a run may spend on computing what its model holds: folding and shape facts.

One object a run, in its context: whoever computes notes the time, and asks before going on. When it
is spent, nothing goes wrong: what has not been computed stays in the model as it is.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from graphopt.util.tables import counted, human_bytes


@dataclass
class Budget:
    """What may be spent, and what was left undone for lack of it.

    Attributes:
        seconds: for folding and shape facts together; ``None`` for any time.
        nbytes: memory that the results of computing constants may take; ``None`` for any size.
        unfolded: nodes not folded because the time was up.
        unknown: how many nodes nothing was inferred about because the time was up.
        oversized: nodes not folded because that would have taken too much memory.
    """

    seconds: float | None = None
    nbytes: int | None = None
    unfolded: set[str] = field(default_factory=set)
    unknown: int = 0
    oversized: set[str] = field(default_factory=set)
    _spent: float = 0.0
    _since: float | None = None

    @property
    def left(self) -> float | None:
        """Seconds that remain; ``None`` for any time."""
        if self.seconds is None:
            return None
        running = 0.0 if self._since is None else time.perf_counter() - self._since
        return max(0.0, self.seconds - self._spent - running)

    @property
    def over(self) -> bool:
        """Whether the time is up."""
        return self.left == 0

    @contextmanager
    def spending(self) -> Iterator[None]:
        """Count the time of a ``with`` block; blocks may be nested."""
        if self._since is not None:
            yield
            return
        self._since = time.perf_counter()
        try:
            yield
        finally:
            self._spent += time.perf_counter() - self._since
            self._since = None

    def allows(self, nbytes: int) -> bool:
        """Whether so much memory may be taken."""
        return self.nbytes is None or nbytes <= self.nbytes

    def remarks(self) -> list[str]:
        """What was left undone, for the report."""
        told, undone = [], []
        if self.unfolded:
            undone.append(f"{counted(len(self.unfolded), 'node')} not folded")
        if self.unknown:
            undone.append(f"nothing inferred about {counted(self.unknown, 'node')}")
        if undone:
            told.append(f"--time-limit {self.seconds:g} was reached: {', '.join(undone)}")
        if self.oversized:
            what, limit = counted(len(self.oversized), "node"), human_bytes(self.nbytes or 0)
            told.append(f"{what} not folded: that would take more than --memory-limit, {limit}")
        return told
