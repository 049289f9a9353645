"""Classes of numerical equivalence of rewrites."""

from __future__ import annotations

from enum import IntEnum


class Numerics(IntEnum):
    """Numerical equivalence that a rewrite guarantees; sets the tolerance of verification, and filters rules.

    ``EXACT``: the same bits for all inputs, signed zeros, denormals, NaNs and infinities included.

    ``REASSOCIATES``: the same real-number expression, evaluated in another order; allowed by default. For
    finite inputs, denormal ones included, results agree up to rounding, and a NaN or an infinity computed by
    the original (0 / 0, the root of -1, the reciprocal of a denormal number) stays one, or an infinity
    becomes a huge number. So a rewrite is not of this class if it removes a division or a logarithm whose
    operand may be denormal. If an intermediate result overflows in one of the orders, close to the largest
    numbers, the order decides whether the result is finite. For inputs with NaN or infinities, the same
    elements of the results are not finite, unless infinities are added in another order. An integer computed
    from a NaN, such as the index of a largest element, is the same unless kernels keep or drop a NaN
    depending on its position.

    ``APPROXIMATES``: another expression that is close; only with ``--fast-math``. It may turn a NaN or an
    infinity into a number, but not vice versa.
    """

    EXACT = 0
    REASSOCIATES = 1
    APPROXIMATES = 2
