"""Decide whether the sessions of a model fit into memory, and how many at a time."""

from __future__ import annotations

from dataclasses import dataclass

from graphopt import ir
from graphopt.process import memory
from graphopt.util.text_tables import human_bytes

#: Memory of a default session, in multiples of the bytes of its weights: it repacks weights, or converts
#: half-precision ones to float32.
_SESSION = 2
#: Share of the available memory that sessions may use. Results of runs and other processes need the rest.
_SHARE = 0.8
#: Bytes of a session in addition to its weights.
_BASE = 1 << 27


@dataclass(frozen=True)
class MemoryPlan:
    """Memory limits of processes with sessions.

    Attributes:
        limit: bytes of memory of a process; ``None`` for no limit.
        single: whether only one process with one session may be alive at a time.
        refusal: the reason, if not even one session fits.
    """

    limit: int | None = None
    single: bool = False
    refusal: str | None = None

    @classmethod
    def of(cls, model: ir.Model, limit: int | None, available: int | None = None) -> MemoryPlan:
        """The plan for sessions of ``model`` and of its optimized form.

        Args:
            limit: bytes of memory of a process in addition to the weights; ``None`` for no limit.
            available: bytes of available memory; by default as reported by the system.
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
        # original and candidate, each without and with optimizations
        together = 2 * (1 + _SESSION) * weights + 2 * _BASE
        return cls(share if bound is None else min(bound, share), together > share)
