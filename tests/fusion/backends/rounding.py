"""Comparison of the results of kernels with those of the interpreter, with the effect of rounding as tolerance."""

from __future__ import annotations

import numpy as np


def assert_near(got: np.ndarray, want: np.ndarray, precise: np.ndarray, message: str) -> None:
    """Fail unless ``got`` is ``want``, or as near as its type allows.

    Args:
        precise: the result of the interpreter in double precision.
    """
    if want.dtype.kind in "iub" and want.dtype.itemsize != 2:
        np.testing.assert_array_equal(got, want, message)
        return
    a, b, c = (array.astype(np.float64) for array in (got, want, precise))
    epsilon = {2: 8e-3 if want.dtype != np.float16 else 1e-3, 4: 2e-6}[want.dtype.itemsize]
    with np.errstate(all="ignore"):
        bound = epsilon * (np.abs(b) + 1) + 64 * np.abs(b - c)
        near = (np.abs(a - b) <= bound) | (a == b) | (np.isnan(a) & np.isnan(b))
        # A result at the edge of overflow may be infinite in one and finite in the other.
        near |= (
            (np.abs(a) > 6e4) & (np.abs(b) > 6e4) & (np.sign(a) == np.sign(b)) & (np.isinf(a) != np.isinf(b))
        )
        near |= ~np.isfinite(c) & ~np.isfinite(bound)
    assert near.all(), f"{message}: {a[~near][:3]} instead of {b[~near][:3]} ({c[~near][:3]})"
