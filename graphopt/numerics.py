"""Classes of numerical equivalence of rewrites."""

from __future__ import annotations

from enum import IntEnum


class Numerics(IntEnum):
    """Numerical equivalence that a rewrite guarantees; sets the tolerance of verification, and filters rules.

    ``EXACT``: the same bits for all inputs, signed zeros, denormals, NaNs and infinities included.

    ``REASSOCIATES``: the same real-number expression, evaluated in another order; allowed by default. For
    finite inputs, including denormal ones, results agree up to rounding. Where the original computes a NaN or
    an infinity (0 / 0, the root of -1, the reciprocal of a denormal number), the result is a NaN, an infinity
    or, in place of an infinity, a huge number. So a rewrite is not of this class if it removes a division or
    a logarithm whose operand may be denormal. If an intermediate result close to the largest numbers
    overflows in one of the orders, the order decides whether the result is finite. For inputs with NaN or
    infinities, the same elements of the results are not finite, unless infinities are added in another order.
    An integer computed from a NaN, such as the index of a largest element, is the same unless kernels keep or
    drop a NaN depending on its position.

    ``APPROXIMATES``: a different expression with approximately equal values; only with ``--fast-math``. It
    may turn a NaN or an infinity into a number, but not vice versa.
    """

    EXACT = 0
    REASSOCIATES = 1
    APPROXIMATES = 2
