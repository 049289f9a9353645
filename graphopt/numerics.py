"""How far a rewrite may move the numbers."""

from __future__ import annotations

from enum import IntEnum


class Numerics(IntEnum):
    """What a rewrite promises of its results; sets the verifier's tolerance and gates pipelines.

    ``EXACT``: the same bits for all inputs, signed zeros, denormals, NaNs and infinities included.

    ``REASSOCIATES``: the same real-number expression, evaluated in another order; the default pipeline allows
    it. For finite inputs, denormal ones included, results agree up to rounding, and a NaN or an infinity that
    the original makes (0 / 0, the root of -1, the reciprocal of a denormal number) stays one, or an infinity
    becomes a huge number. So a rewrite is not of this class if it removes a division or a logarithm whose
    operand may be denormal. Where an inner result overflows in either order, next to the largest numbers, the
    order decides whether a result is finite. Where NaN or infinities are fed, results are not finite in the
    same elements, unless infinities meet in another order. An integer computed from a NaN, such as the index
    of a largest element, stays the same unless kernels keep or drop a NaN by its place.

    ``APPROXIMATES``: another expression that is close; only with ``--fast-math``. It may make a number of a
    NaN or an infinity, but not the other way round.
    """

    EXACT = 0
    REASSOCIATES = 1
    APPROXIMATES = 2
