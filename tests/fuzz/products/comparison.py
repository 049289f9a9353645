"""Comparison of the results of kernels with those of onnxruntime.

The tolerance of an element is the effect of rounded inputs on it, which runs with inputs of small random
errors estimate, and a small part of the largest magnitude. An element beyond it is right if its distance from
the result in double precision is at most twice that of each result of onnxruntime, as sums that cancel have
it. An element that is NaN or infinite in all runs of onnxruntime has to be the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tests.fuzz.products.product_graph import FLOAT, Array, Tolerance

#: Relative error of inputs, about eight roundings; the number of runs with errors; and the share of their spread.
ERROR, RUNS, MARGIN = 2.0**-21, 3, 4.0
#: Numbers below the smallest normal one, 2⁻¹²⁶, may be rounded to zero, also within a function.
LEAST = 2.0**-120


def disturbed(feeds: Mapping[str, Array], turn: int) -> dict[str, Array]:
    """Inputs whose floats have relative errors."""
    random, found = np.random.default_rng(turn), dict(feeds)
    with np.errstate(all="ignore"):
        for name, array in feeds.items():
            if array.dtype == FLOAT:
                errors = random.uniform(-ERROR, ERROR, array.shape)
                found[name] = np.asarray(array * (1 + errors), dtype=np.float32)
    return found


def mismatch(
    got: Array,
    expected: Sequence[Array],
    disturbed: Sequence[Array],
    tolerance: Tolerance,
    exact: Callable[[], Array | None] = lambda: None,
) -> str | None:
    """A description of the largest mismatch of ``got``.

    Args:
        expected: results of onnxruntime without and with optimizations, each of which is correct.
        disturbed: results for inputs with errors.
        exact: computes the result in double precision, or ``None``.
    """
    first = expected[0]
    if (got.shape, got.dtype) != (first.shape, first.dtype):
        return f"{got.dtype}{list(got.shape)} instead of {first.dtype}{list(first.shape)}"
    if not got.size:
        return None
    expected = [other for other in expected if other.shape == first.shape]
    with np.errstate(all="ignore"):
        wide, *others = (array.astype(np.float64) for array in (got, *expected))
        wrong = _class_mismatches(wide, others)
        if wrong.any():
            return _text("NaN or infinity", wrong, got, expected)
        apart = np.min([np.where(other == wide, 0, np.abs(other - wide)) for other in others], axis=0)
        spread = np.max([np.abs(other.astype(np.float64) - others[0]) for other in disturbed], axis=0)
        limit = MARGIN * np.nan_to_num(spread, nan=np.inf, posinf=np.inf)
        largest = np.abs(others[0], where=np.isfinite(others[0]), out=np.zeros_like(wide)).max()
        if got.dtype == FLOAT:
            limit = limit + tolerance.precision * largest + LEAST
        wrong = np.isfinite(apart) & (apart > limit)
        if wrong.any() and got.dtype == FLOAT and (reference := exact()) is not None:
            errors = [np.abs(each - reference) for each in (wide, *others)]
            wrong &= ~(errors[0] <= 2 * np.min(errors[1:], axis=0))
        # at a tie, an integer is the next one, and a float is still in the range of the result
        is_far = apart[wrong].max(initial=0) > 2 * largest if got.dtype == FLOAT else apart.max() > 1
    if tolerance.ties and not is_far:
        few = wrong.sum() <= max(2, tolerance.ties * wrong.size)
        return None if few else _text("many ties", wrong, got, expected)
    return _text("difference", wrong, got, expected) if wrong.any() else None


def _class_mismatches(got: Array, expected: Sequence[Array]) -> Array:
    """Elements that are NaN, or an infinity, in all of ``expected`` and not in ``got``, or the reverse."""
    classes = [_class(array) for array in (got, *expected)]
    agreed = np.all([each == classes[1] for each in classes[1:]], axis=0)
    return np.asarray(agreed & (classes[0] != classes[1]))


def _class(x: Array) -> Array:
    """0 for numbers, 1 for NaN, 2 and 3 for infinities."""
    return np.asarray(np.where(np.isnan(x), 1, np.where(np.isinf(x), 2 + np.signbit(x), 0)))


def _text(fault: str, wrong: Array, got: Array, expected: Sequence[Array]) -> str:
    place = int(np.flatnonzero(wrong)[0])
    others = ", ".join(str(other.flat[place]) for other in expected)
    index = tuple(map(int, np.unravel_index(place, got.shape)))
    return f"{fault} at {index} of {list(got.shape)}: {got.flat[place]} instead of {others}, one of {wrong.sum()}"
