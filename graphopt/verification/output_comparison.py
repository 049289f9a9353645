"""Compare two results of a model: their difference, and whether rounding explains it.

Sequences, maps and optionals are flattened into their tensors first; their structure must agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np

from graphopt.util.lazy_dataclass import dataclass
from graphopt.verification.tolerances import Tolerance

Array = np.ndarray[Any, Any]

#: The requirement for non-finite numbers. ``same``: the same NaN or infinity in both results;
#: ``overflow``: the same, or a huge number in place of an infinity; ``set``: any non-finite number;
#: ``robust``: any number in place of a non-finite number; ``ignore``: none.
NonFinite = Literal["same", "overflow", "set", "robust", "ignore"]

#: Deviation of an output for differently rounded inputs, relative to its magnitude, beyond which the output
#: is meaningless.
_BLOWN_UP = 1e4
#: Exponent: huge numbers are above this power of the largest number of their type, 6e33 for float32.
_HUGE = 0.875
#: Minimum scale of a tensor: the largest |element| counts as at least this.
_LEAST_SCALE = 1e-3


@dataclass(frozen=True)
class Deviation:
    """The deviation of one tensor from another.

    Attributes:
        largest: the largest difference of floats; for other types, the number of elements that differ.
        total: the sum of the differences of floats, or of integers of up to 16 bits; for other types 0.
    """

    largest: float = 0.0
    total: float = 0.0

    def merged(self, other: Deviation) -> Deviation:
        """The larger deviation by each measure."""
        return Deviation(max(self.largest, other.largest), max(self.total, other.total))


_ANY = Deviation(float("inf"), float("inf"))


@dataclass(frozen=True)
class Outcome:
    """The outcome of a comparison: the largest finite difference, and the fault, if any."""

    delta: float = 0.0
    reason: str | None = None


def compare(
    expected: Any,
    actual: Any,
    tolerance: Tolerance,
    *,
    nonfinite: NonFinite = "same",
    signed_zeros: bool = False,
    slack: Sequence[float] | None = None,
    totals: Sequence[float] | None = None,
) -> Outcome:
    """Compare two outputs.

    Args:
        expected, actual: outputs of :func:`graphopt.ort.session.run`.
        tolerance: the tolerance for floats; everything else must be equal.
        nonfinite: see :data:`NonFinite`.
        signed_zeros: distinguish 0.0 from -0.0.
        slack: per tensor, as returned by :func:`largest_deviations`: an additional absolute difference
            for floats, a number of elements that may differ for other types; infinite if only the element
            type must agree.
        totals: per tensor, the allowed sum of all differences beyond ``tolerance``, of floats and of integers
            of up to 16 bits. If rounding changes few elements, it does not explain a
            difference in all elements.
    """
    left, right = list(_leaves(expected, "")), list(_leaves(actual, ""))
    if [(place, _kind(x)) for place, x in left] != [(place, _kind(x)) for place, x in right]:
        return Outcome(float("inf"), f"structure {_description(expected)} became {_description(actual)}")
    worst = Outcome()
    for index, ((place, a), (_, b)) in enumerate(zip(left, right, strict=True)):
        allowed = slack[index] if slack is not None and index < len(slack) else 0.0
        total = totals[index] if totals is not None and index < len(totals) else float("inf")
        outcome = _compare_leaf(a, b, tolerance, nonfinite, signed_zeros, allowed, total)
        if outcome.reason is not None:
            where = f"at {place}: " if place else ""
            return Outcome(max(worst.delta, outcome.delta), where + outcome.reason)
        worst = max(worst, outcome, key=lambda outcome: outcome.delta)
    return worst


def same_kind(expected: Any, actual: Any, *, shapes: bool = True) -> Outcome:
    """Compare only element types and shapes (or ranks), for random results."""
    for (_, a), (_, b) in zip(_leaves(expected, ""), _leaves(actual, ""), strict=False):
        if _kind(a) != _kind(b) or a.ndim != b.ndim or (shapes and a.shape != b.shape):
            return Outcome(float("inf"), f"{_type_and_shape(a)} became {_type_and_shape(b)}")
    return Outcome()


def identical(a: Any, b: Any) -> bool:
    """Whether two results are bit-identical."""
    left, right = list(_leaves(a, "")), list(_leaves(b, ""))
    return [place for place, _ in left] == [place for place, _ in right] and all(
        _same_text(x, y) if _kind(x) == "text" else _same_bits(x, y)
        for (_, x), (_, y) in zip(left, right, strict=True)
    )


def largest_deviations(before: Any, after: Any) -> list[float]:
    """The largest deviation per tensor, in the units of ``slack``; infinite if the shapes differ."""
    return [moved.largest for moved in _deviations(before, after)]


def _deviations(before: Any, after: Any) -> list[Deviation]:
    left, right = list(_leaves(before, "")), list(_leaves(after, ""))
    if len(left) != len(right):
        return [_ANY] * len(left)
    return [_deviation_of(a, b) for (_, a), (_, b) in zip(left, right, strict=True)]


def discrete_deviations(before: Any, after: Any) -> list[Deviation]:
    """The deviation per tensor, counting only tensors of other types than floats."""
    leaves = [array for _, array in _leaves(before, "")]
    return [
        Deviation() if _is_inexact(array) else moved
        for array, moved in zip(leaves, _deviations(before, after), strict=True)
    ]


def sensitivities(before: Any, after: Any) -> list[Deviation]:
    """The deviation per tensor after rounding; infinite if it is extreme, as next to a pole of 1 / x."""
    sizes = [_size(a) for _, a in _leaves(before, "")]
    return [
        _ANY if moved.largest > _BLOWN_UP * size else moved
        for moved, size in zip(_deviations(before, after), sizes, strict=True)
    ]


def _size(a: Array) -> float:
    """The largest finite element of floats, at least 1; infinite for other types."""
    if not _is_inexact(a):
        return float("inf")
    a = np.abs(_widened(a))
    return float(a[np.isfinite(a)].max(initial=1.0))


def leaves(value: Any) -> list[Array]:
    """The tensors in ``value``."""
    return [array for _, array in _leaves(value, "")]


def nbytes(value: Any) -> int:
    """Bytes of the tensors in ``value``."""
    return sum(array.nbytes for _, array in _leaves(value, ""))


def _same_bits(a: Array, b: Array) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.dtype.itemsize > 8:
        return a.tobytes() == b.tobytes()
    word = f"u{a.dtype.itemsize}"
    return bool((a.view(word) == b.view(word)).all())


def _same_text(a: Array, b: Array) -> bool:
    return a.shape == b.shape and _kind(b) == "text" and bool((a == b).all())


def _deviation_of(a: Array, b: Array) -> Deviation:
    if a.shape != b.shape or a.dtype != b.dtype:
        return _ANY
    if _kind(a) != "text" and _same_bits(a, b):
        return Deviation()
    if not _is_inexact(a):
        return Deviation(float(np.count_nonzero(a != b)), _integer_difference(a, b))
    a, b = _widened(a), _widened(b)
    finite = np.isfinite(a) & np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return _ANY
    difference = np.abs(a[finite] - b[finite])
    return Deviation(float(difference.max(initial=0.0)), float(difference.sum()))


def _integer_difference(a: Array, b: Array) -> float:
    """The sum of the differences of small integers, which represent quantized numbers; otherwise 0."""
    if a.dtype.kind not in "iu" or a.dtype.itemsize > 2:
        return 0.0
    return float(np.abs(a.astype(np.int64) - b.astype(np.int64)).sum())


def _leaves(value: Any, place: str) -> Iterator[tuple[str, Array]]:
    """The tensors in ``value`` with their places, such as ``[1]['key']``."""
    if isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _leaves(item, f"{place}[{index}]")
    elif isinstance(value, dict):
        for key in sorted(value, key=repr):
            yield from _leaves(value[key], f"{place}[{key!r}]")
    elif value is not None:
        yield place, np.asarray(value)


def _kind(array: Array) -> str:
    return "text" if array.dtype.kind in "OUS" else str(array.dtype)


def _description(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"sequence of {len(value)}"
    if isinstance(value, dict):
        return f"map of {len(value)}"
    return "nothing" if value is None else _type_and_shape(np.asarray(value))


def _type_and_shape(array: Array) -> str:
    return f"{_kind(array)}{list(array.shape)}"


def _is_inexact(array: Array) -> bool:
    """Whether the elements are floats, also of ml_dtypes, or complex numbers."""
    return array.dtype.kind in "fc" or array.dtype.name.startswith(("float", "bfloat"))


def _widened(array: Array) -> Array:
    if array.dtype.kind == "c":
        return (
            array.astype(np.complex128).view(np.float64) if array.ndim else np.array([array.real, array.imag])
        )
    return array.astype(np.float64)


def _compare_leaf(
    a: Array,
    b: Array,
    tolerance: Tolerance,
    nonfinite: NonFinite,
    signed_zeros: bool,
    slack: float,
    total: float,
) -> Outcome:
    if slack == float("inf"):
        return Outcome()
    if a.shape != b.shape:
        return Outcome(float("inf"), f"shape {list(a.shape)} became {list(b.shape)}")
    if a.size == 0:
        return Outcome()
    if not _is_inexact(a):
        return _compare_exact(a, b, slack, total)
    if _same_bits(a, b):
        return Outcome()
    if nonfinite == "overflow":
        b = _saturated(a, b)
    return _compare_floats(_widened(a), _widened(b), tolerance, nonfinite, signed_zeros, slack, total)


def _saturated(a: Array, b: Array) -> Array:
    """``b`` with huge numbers replaced by the infinities of the same sign that ``a`` has there."""
    if a.dtype.name not in ("float16", "float32", "float64"):
        return b
    huge = float(np.finfo(a.dtype).max) ** _HUGE
    overflows = np.isinf(a) & (np.abs(b) > huge) & (np.signbit(a) == np.signbit(b))
    return np.where(overflows, a, b)


def _compare_exact(a: Array, b: Array, slack: float, total: float) -> Outcome:
    differ = np.asarray(a != b)
    count = int(np.count_nonzero(differ))
    if count == 0:
        return Outcome()
    delta = 1.0
    if a.dtype.kind in "iu" and b.dtype.kind in "iu":
        delta = float(np.abs(a.astype(np.float64) - b.astype(np.float64)).max())
    if count <= slack and _integer_difference(a, b) <= total:
        return Outcome()
    first = tuple(int(axis) for axis in np.argwhere(differ)[0]) if a.ndim else ()
    return Outcome(
        delta,
        f"{count} of {a.size} elements differ, the first at {list(first)}: {a[first]} became {b[first]}",
    )


def _compare_floats(
    a: Array,
    b: Array,
    tolerance: Tolerance,
    nonfinite: NonFinite,
    signed_zeros: bool,
    slack: float,
    total: float,
) -> Outcome:
    finite_a, finite_b = np.isfinite(a), np.isfinite(b)
    reason = _compare_nonfinite(a, b, finite_a, finite_b, nonfinite)
    if reason is not None:
        return Outcome(float("inf"), reason)
    both = finite_a & finite_b
    a, b = a[both], b[both]
    if a.size == 0:
        return Outcome()
    if signed_zeros:
        flipped = (a == 0) & (b == 0) & (np.signbit(a) != np.signbit(b))
        if flipped.any():
            return Outcome(0.0, f"{int(flipped.sum())} zeros changed their sign")
    difference = np.abs(a - b)
    delta = float(difference.max())
    scale = max(float(np.abs(a).max()), _LEAST_SCALE)
    plain = tolerance.rtol * np.abs(a) + tolerance.atol * scale
    allowed = plain + slack
    wrong = difference > allowed
    if not wrong.any():
        beyond = difference > plain
        if difference[beyond].sum() <= total:
            return Outcome(delta)
        wrong, allowed = beyond, plain
    worst = int(np.argmax(difference - allowed))
    return Outcome(
        delta,
        f"{int(wrong.sum())} of {finite_a.size} elements differ by up to {delta:.3g}"
        f" (largest |element| {scale:.3g}), such as {a[worst]:.7g} and {b[worst]:.7g}",
    )


def _compare_nonfinite(
    a: Array, b: Array, finite_a: Array, finite_b: Array, nonfinite: NonFinite
) -> str | None:
    match nonfinite:
        case "ignore":
            return None
        case "robust":
            lost = finite_a & ~finite_b
        case "set":
            lost = finite_a != finite_b
        case _:
            same = (a == b) | (np.isnan(a) & np.isnan(b))
            lost = (finite_a != finite_b) | (~finite_a & ~same)
    if not lost.any():
        return None
    first = int(np.argmax(lost))
    old, new = a.reshape(-1)[first], b.reshape(-1)[first]
    return f"{int(lost.sum())} of {a.size} elements became finite or not, such as {old:.7g} and {new:.7g}"
