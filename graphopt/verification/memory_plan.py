"""Whether the sessions of a model fit into memory, and how many of them."""

from __future__ import annotations

from dataclasses import dataclass

from graphopt import ir
from graphopt.process import memory
from graphopt.util.tables import human_bytes

#: A default session holds its weights packed anew, or half-precision ones as float32.
_SESSION = 2
#: The share of what is available that may be taken: the results of runs take some, and so do others.
_SHARE = 0.8
#: Private memory of a session besides its weights.
_BASE = 1 << 27


@dataclass(frozen=True)
class MemoryPlan:
    """What processes that hold sessions may take.

    Attributes:
        limit: bytes that a process may take; ``None`` for any size.
        single: one process is alive at a time, with one session.
        refusal: why not even one session fits, if so.
    """

    limit: int | None = None
    single: bool = False
    refusal: str | None = None

    @classmethod
    def of(cls, model: ir.Model, limit: int | None, available: int | None = None) -> MemoryPlan:
        """The room for sessions of ``model`` and of what becomes of it.

        Args:
            limit: bytes that a process may take besides the weights; ``None`` for any size.
            available: bytes that can be had; by default as many as the system says.
        """
        weights = ir.initializer_bytes(model)
        bound = None if limit is None else max(limit, memory.SESSION_BYTES) + 3 * weights
        available = memory.available() if available is None else available
        if available is None:
            return cls(bound)
        share = int(_SHARE * available)
        needed = _SESSION * weights + _BASE
        if needed > share and weights:
            sizes = f"needs about {human_bytes(needed)} of memory, {human_bytes(available)} available"
            return cls(bound, True, f"running it {sizes}")
        # the original and the result, each without optimizations and with them
        together = 2 * (1 + _SESSION) * weights + 2 * _BASE
        return cls(share if bound is None else min(bound, share), together > share)
