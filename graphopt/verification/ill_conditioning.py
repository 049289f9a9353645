"""Detect by the reference evaluator that a difference is due to rounding, overflow, NaN or signed zeros."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphopt.verification.case import Case
from graphopt.verification.numeric_traits import NumericTraits
from graphopt.verification.onnx_reference import Reference
from graphopt.verification.output_comparison import (
    compare,
    identical,
    largest_deviations,
    same_kind,
)
from graphopt.verification.tolerances import Tolerance

#: Factor by which the candidate's error against the exact value may exceed the original's error.
_MARGIN = 2.0
#: Factor by which the original's error may exceed the reference evaluator's rounding error.
_TRUST = 1000.0


def excuse_for(
    name: str,
    case: Case,
    expected: Any,
    actual: Any,
    numeric_traits: NumericTraits,
    references: tuple[Reference, Reference] | None,
    tolerance: Tolerance,
    *,
    exact: bool,
) -> str | None:
    """The excuse for the difference between ``expected`` and ``actual``; ``None`` without an excuse.

    Args:
        name: name of the output.
        case: the inputs.
        expected: the original's output.
        actual: the candidate's output.
        numeric_traits: numeric traits of the output.
        references: evaluators of original and candidate, in higher precision and without negative zeros.
        tolerance: for floats.
        exact: every bit that kernels determine must be unchanged.
    """
    if not hasattr(expected, "dtype") or same_kind(expected, actual).reason is not None:
        return None
    kind = expected.dtype.kind
    if kind not in "fiub":
        return None
    if references is None:
        return None
    original = references[0]
    if not exact and numeric_traits.poles and _differ_by_zeros(name, case, actual, references, tolerance):
        return "it depends on the sign of a zero"
    if exact and numeric_traits.sure_nans and not numeric_traits.halves:
        return None
    meant = original.wide(name, case.feeds)
    if meant is None and case.distribution == "special" and not numeric_traits.sure_nans:
        return "a maximum drops or keeps NaN by its position"
    if meant is None or meant.value.shape != expected.shape:
        return None
    overflowing = (
        ("large", "huge") if kind == "f" or numeric_traits.detects_nan else ("large", "huge", "special")
    )
    if not exact and numeric_traits.rounds and not meant.finite and case.distribution in overflowing:
        return "it depends on overflow in the original"
    if kind != "f":
        same = (
            not exact
            and numeric_traits.rounds
            and (
                identical(meant.value, actual)
                or bool(((actual == meant.value) | (actual == expected)).all())
                or original.is_tie(name, case.feeds, actual)
            )
        )
        return "it depends on rounding in the original" if same else None
    if not numeric_traits.sure_nans:
        dropped = original.without_nan(name, case.feeds)
        by_position = np.isnan(meant.value) & ~np.isnan(meant.value if dropped is None else dropped)
        if _agree_but(by_position, expected, actual, tolerance):
            return "a maximum drops or keeps NaN by its position"
    with np.errstate(all="ignore"):
        wide = meant.value.astype(expected.dtype)
    plain = original.output(name, case.feeds)
    trusted = plain is not None and _explains(plain, wide, expected, tolerance)
    if (
        not exact
        and trusted
        and _as_near(wide, expected, actual, tolerance, poles=case.distribution != "tiny")
    ):
        return "it depends on rounding in the original"
    if not numeric_traits.halves or plain is None:
        return None
    # no runtime rounds at every step, so a result may be near ``wide`` or near ``plain``
    halved = [plain]
    if case.distribution == "huge":  # where halves overflow, onnxruntime may drop the cast to half precision
        halved.append(_where_finite(plain, original.unrounded(name, case.feeds)))
    alike = any(_as_halves(wide, value, expected, actual, tolerance) for value in halved)
    return "halves may be computed in either precision" if alike else None


def _differ_by_zeros(
    name: str, case: Case, actual: Any, references: tuple[Reference, Reference], tolerance: Tolerance
) -> bool:
    """Whether both models agree without negative zeros, and the reference evaluator confirms ``actual``."""
    specified = references[1].output(name, case.feeds)
    if specified is None or compare(specified, actual, tolerance).reason is not None:
        return False
    one, other = (reference.without_negative_zeros(name, case.feeds) for reference in references)
    return one is not None and other is not None and compare(one, other, tolerance).reason is None


def _explains(plain: Any, wide: Any, expected: Any, tolerance: Tolerance) -> bool:
    """Whether the distance of ``expected`` from ``wide`` is due to precision, not to another computation.

    ``plain`` and ``wide`` are results of the reference evaluator; ``plain`` has the precision of
    ``expected``. If the evaluator's computation differs from onnxruntime's, for example for an empty pooling
    window, it differs in every precision.
    """
    if plain.shape != expected.shape:
        return False
    with np.errstate(all="ignore"):
        if (np.isfinite(expected) & ~np.isfinite(wide) & ~np.isfinite(plain)).any():
            return False
        finite = np.isfinite(wide) & np.isfinite(expected) & np.isfinite(plain)
    wide, expected, plain = (
        np.where(finite, value, 0).astype(expected.dtype) for value in (wide, expected, plain)
    )
    if compare(wide, expected, tolerance).reason is None:
        return True
    (error,), (rounding,) = largest_deviations(wide, expected), largest_deviations(wide, plain)
    return error <= _TRUST * rounding


def _as_near(wide: Any, expected: Any, actual: Any, tolerance: Tolerance, *, poles: bool) -> bool:
    """Whether ``actual`` and ``expected`` are about equally near to ``wide``.

    With ``poles``, an element does not count if it is finite in only one of ``wide`` and ``expected``.
    ``poles`` is false for denormal inputs: their reciprocals overflow to infinity, and an infinity of the
    original must remain infinite. A NaN that such an infinity caused may become a number.
    """
    if not poles and (np.isfinite(wide) & np.isinf(expected) & np.isfinite(actual)).any():
        return False
    with np.errstate(all="ignore"):
        alike = np.isclose(wide, expected, equal_nan=True)
    ignored = ~(np.isfinite(wide) & np.isfinite(expected)) & ~alike
    wide, expected, actual = (np.where(ignored, 0, value) for value in (wide, expected, actual))
    slack = [_MARGIN * error for error in largest_deviations(wide, expected)]
    return compare(wide, actual, tolerance, slack=slack).reason is None


def _as_halves(wide: Any, halved: Any, expected: Any, actual: Any, tolerance: Tolerance) -> bool:
    """Whether each element of ``actual`` is near ``wide`` or ``halved``.

    If halves overflow and the original deviates from the specification, the candidate may also deviate.
    """
    if halved.shape != wide.shape:
        return False
    with np.errstate(all="ignore"):
        halved = halved.astype(wide.dtype)
        near = np.isclose(actual, wide, equal_nan=True) | (np.abs(actual - wide) <= np.abs(actual - halved))
        nearer = np.where(near, wide, halved)
        deviates = ~np.isfinite(halved) & ~np.isclose(halved, expected, equal_nan=True)
        nearer = np.where(deviates, actual, nearer)
    return compare(nearer.astype(wide.dtype), actual, tolerance).reason is None


def _where_finite(value: Any, otherwise: Any) -> Any:
    """``value``, with elements of ``otherwise`` in place of NaN and infinities if the shapes agree."""
    if otherwise is None or otherwise.shape != value.shape:
        return value
    return np.where(np.isfinite(value), value, otherwise)


def _agree_but(excepted: Any, expected: Any, actual: Any, tolerance: Tolerance) -> bool:
    """Whether two arrays of floats agree except at the elements in ``excepted``."""
    left, right = (np.where(excepted, 0, value).astype(expected.dtype) for value in (expected, actual))
    return compare(left, right, tolerance).reason is None
