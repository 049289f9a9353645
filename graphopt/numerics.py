"""How far a rewrite may move the numbers."""

from __future__ import annotations

from enum import IntEnum


class Numerics(IntEnum):
    """What a rewrite promises of its results; sets the oracle's tolerance and gates pipelines.

    ``EXACT``: the same bits, signed zeros, NaNs and infinities included.
    ``REASSOCIATES``: the same real-number expression, evaluated in another order; the
    default pipeline allows it.
    ``APPROXIMATES``: another expression that is close; only with ``--fast-math``.
    """

    EXACT = 0
    REASSOCIATES = 1
    APPROXIMATES = 2
