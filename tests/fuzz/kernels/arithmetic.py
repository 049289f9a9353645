"""Reference arithmetic in double precision, exact or with random rounding errors that estimate the tolerance.

Floats of all types are held as float64, integers and bools in their own types. An exact run rounds nothing,
except for numbers beyond the range of single precision. A run with errors moves each result that its type can't
represent by a few units in the last place, at random. The spread of several such runs is the effect of rounding on
the outputs of a graph: large for cancellation, or if a comparison depends on a bit, and zero if all is exact.
"""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes
import numpy as np

Array = np.ndarray

DTYPES: dict[str, np.dtype] = {
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "i8": np.dtype(np.int8),
    "u8": np.dtype(np.uint8),
    "i32": np.dtype(np.int32),
    "i64": np.dtype(np.int64),
    "bool": np.dtype(np.bool_),
}
FLOATS = ("f32", "f16", "bf16")
INTS = ("i8", "u8", "i32", "i64")
#: Half a unit in the last place, relative.
ROUNDING = {"f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}
#: The smallest normal number.
NORMAL = {"f32": 2.0**-126, "f16": 2.0**-14, "bf16": 2.0**-126}
#: Size of errors, in roundings: of sums and products, which are rounded once, and of functions, which are within
#: 4 units in the last place.
BASIC, FUNCTION = 4.0, 16.0


class Arithmetic:
    """Settles results.

    Args:
        turn: number of the run with errors; ``None`` for the exact run. Results with two legal values have the first in
            every other run.
    """

    def __init__(self, turn: int | None = None) -> None:
        self.errors = None if turn is None else np.random.default_rng(turn)
        self._even = turn is not None and turn % 2 == 0

    def settle(
        self,
        found: Array,
        dtype: str,
        *,
        size: Array | float | None = None,
        roundings: float = BASIC,
        exact: Array | None = None,
    ) -> Array:
        """``found`` as a result of type ``dtype``.

        Args:
            size: what its error is relative to; by default itself.
            roundings: maximum error.
            exact: where nothing is rounded; by default where the type can represent what was found.
        """
        with np.errstate(all="ignore"):
            if self.errors is not None:
                size = np.abs(found) if size is None else np.abs(size)
                if exact is None:
                    exact = found.astype(DTYPES[dtype]).astype(np.float64) == found
                inexact = np.isfinite(found) & ~exact
                error = self.errors.uniform(-roundings, roundings, np.shape(found)) * ROUNDING[dtype]
                least = NORMAL["f32"] if roundings == FUNCTION else 2.0**-149
                moved = found + error * np.maximum(size, least / ROUNDING[dtype] / BASIC)
                found = np.where(inexact & np.isfinite(moved), moved, found)
            kind = DTYPES[dtype]
            if dtype == "f16" and (self.errors is None or self._even):
                kind = DTYPES["f32"]  # inner values of a kernel are never stored as float16
            short = found.astype(kind).astype(np.float64)
            return np.where(np.isinf(short) | (short == 0), short, found)

    def function(self, found: Array, dtype: str, size: Array | float | None = None) -> Array:
        """A result of a function such as exp."""
        return self.settle(found, dtype, size=size, roundings=FUNCTION)

    def total(self, x: Array, axes: Sequence[int], dtype: str) -> Array:
        """The sum over ``axes``, which keep size 1; its error grows with the magnitudes of the summands."""
        count = int(np.prod([x.shape[axis] for axis in axes]))
        size = np.abs(x).sum(axis=tuple(axes), keepdims=True)
        found = self.fragile(x.sum(axis=tuple(axes), keepdims=True), size)
        whole = (x == np.rint(x)).all(axis=tuple(axes), keepdims=True) & (size < 1 / ROUNDING[dtype])
        exact = whole | (count <= 1) & (found.astype(DTYPES[dtype]) == found)
        return self.settle(found, dtype, size=size, roundings=BASIC + np.sqrt(count) / 8, exact=exact)

    def product(self, x: Array, axes: Sequence[int], dtype: str) -> Array:
        """The product over ``axes``, which keep size 1."""
        largest = np.maximum(np.abs(x), 1).prod(axis=tuple(axes), keepdims=True)
        smallest = np.minimum(np.abs(x), 1).prod(axis=tuple(axes), keepdims=True)
        found = self.fragile(x.prod(axis=tuple(axes), keepdims=True), largest)
        least = (np.abs(x) > 0).all(axis=tuple(axes), keepdims=True) & (smallest < NORMAL["f32"])
        found = self.fragile(found, np.where(least, np.inf, 0.0))
        few = (x == np.rint(x)).all(axis=tuple(axes), keepdims=True) & (largest < 1 / ROUNDING[dtype])
        return self.settle(found, dtype, roundings=BASIC + np.sqrt(x.size) / 8, exact=few)

    def fragile(self, found: Array, largest: Array) -> Array:
        """``found``; arbitrary in runs with errors where intermediate results may overflow single precision."""
        if self.errors is None:
            return found
        over = (largest > np.finfo(np.float32).max) & ~np.isnan(found)
        return np.where(over & self._even, np.nan, found)

    def extreme(self, function: np.ufunc, x: Array, y: Array) -> Array:
        """The maximum or minimum; either of two zeros of different signs."""
        found = np.asarray(function(x, y))
        if self.errors is None or found.dtype.kind != "f":
            return found
        tie = (x == 0) & (y == 0) & (np.signbit(x) != np.signbit(y))
        return np.where(tie, 0.0 if self._even else -0.0, found)

    def furthest(self, function: np.ufunc, x: Array, axes: Sequence[int]) -> Array:
        """The maximum or minimum over ``axes``, which keep size 1."""
        found = function.reduce(x, axis=tuple(axes), keepdims=True)
        if self.errors is None or found.dtype.kind != "f":
            return found
        zeros = (x == 0) & np.signbit(x)
        both = zeros.any(axis=tuple(axes), keepdims=True)
        return np.where(both & (found == 0), 0.0 if self._even else -0.0, found)

    def mean(self, x: Array, axes: Sequence[int], dtype: str) -> Array:
        """The mean; 0 over no elements, like in onnxruntime."""
        count = max(1, int(np.prod([x.shape[axis] for axis in axes])))
        with np.errstate(all="ignore"):
            return self.settle(self.total(x, axes, dtype) / np.float64(count), dtype)


def widened(x: Array) -> Array:
    """The array in the type of a run."""
    return x.astype(np.float64) if x.dtype.kind not in "iub" else x


def narrowed(x: Array, dtype: str) -> Array:
    """The array as a tensor of ``dtype``."""
    with np.errstate(all="ignore"):
        return x.astype(DTYPES[dtype])
