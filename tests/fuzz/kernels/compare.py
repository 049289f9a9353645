"""Comparison of kernels with double precision and with onnxruntime.

An element has to be within the margin of the double-precision result, or of the result of onnxruntime for the same
model, without or with optimizations. If these all agree that an element is NaN, an infinity, or a zero of one sign,
the kernel has to agree. Elements for which this depends on rounding are not checked.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.fuzz.kernels.arithmetic import DTYPES, Array


def mismatches(got: Array, dtype: str, exact: Array, margin: Array, runtimes: Sequence[Array]) -> list[str]:
    """Descriptions of the first mismatches of ``got``."""
    if got.shape != exact.shape:
        return [f"shape {got.shape} instead of {exact.shape}"]
    if got.dtype != DTYPES[dtype]:
        return [f"type {got.dtype} instead of {DTYPES[dtype]}"]
    runtimes = [other for other in runtimes if other.shape == exact.shape]  # onnxruntime may err, too
    judged = np.isfinite(margin)
    found = _near(got, exact, margin, dtype)
    for other in runtimes:
        found |= _near(got, other, margin, dtype)
    wrong = judged & ~found
    if dtype in ("f32", "f16", "bf16") and runtimes:
        wide = got.astype(np.float64)
        kinds = [_kind(_rounded(exact, dtype)), *(_kind(other.astype(np.float64)) for other in runtimes)]
        agreed = np.all([kind == kinds[0] for kind in kinds], axis=0)
        wrong |= judged & agreed & (_kind(wide) != kinds[0]) & ((margin == 0) | (kinds[0] > 2))
    return [
        f"{np.unravel_index(place, got.shape)}: {got.flat[place]} instead of {exact.flat[place]} ± "
        f"{margin.flat[place]:.1e} (onnxruntime: {', '.join(str(other.flat[place]) for other in runtimes)}), "
        f"one of {wrong.sum()} of {wrong.size}"
        for place in np.flatnonzero(wrong)[:3]
    ]


def _rounded(x: Array, dtype: str) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(x.astype(DTYPES[dtype]).astype(np.float64))


def _near(got: Array, other: Array, margin: Array, dtype: str) -> Array:
    """Elements that are within ``margin`` after rounding to ``dtype``."""
    if dtype not in ("f32", "f16", "bf16"):
        with np.errstate(all="ignore"):
            apart = np.abs(got.astype(np.float64) - other.astype(np.float64))
        return np.asarray((got == other) | ((apart <= margin) & (margin > 0)))
    a, b = got.astype(np.float64), other.astype(np.float64)
    with np.errstate(all="ignore"):
        rounding = np.spacing(np.abs(_rounded(b, dtype)).astype(DTYPES[dtype])).astype(np.float64)
        near = np.abs(a - b) <= margin + np.where(_rounded(b, dtype) == b, 0, np.nan_to_num(rounding))
        return np.asarray((a == _rounded(b, dtype)) | near | (np.isnan(a) & np.isnan(b)))


def _kind(x: Array) -> Array:
    """The class of each element: 0 for numbers, 1 and 2 for zeros, 3 for NaN, 4 and 5 for infinities."""
    kind = np.where(x == 0, 1 + np.signbit(x), 0)
    kind = np.where(np.isnan(x), 3, kind)
    return np.asarray(np.where(np.isinf(x), 4 + np.signbit(x), kind))
