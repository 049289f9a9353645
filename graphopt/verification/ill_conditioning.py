"""What an original's own result hangs on where a candidate's differs for no fault of its own."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphopt.verification.cases import Case
from graphopt.verification.compare import Tolerance, compare, identical, largest_deviations, same_kind
from graphopt.verification.numeric_traits import NumericTraits
from graphopt.verification.reference import Reference

#: As many times as far from what the original means as it is itself, a result may be.
_MARGIN = 2.0
#: As many times as far from what is meant as the reference evaluator's own rounding, rounding may lead.
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
    """Why the output called ``name`` may be ``actual`` instead of ``expected``; ``None`` if it may not.

    Args:
        name: of the output.
        case: what was fed.
        expected: what the original gave.
        actual: what the candidate gave.
        numeric_traits: what is known of the output.
        references: tell what original and candidate compute in higher precision, and without negative zeros.
        tolerance: of floats.
        exact: every bit is to be kept, where kernels do not leave it open.
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
        return "the sign of a zero decides"
    if exact and numeric_traits.sure_nans and not numeric_traits.halves:
        return None
    meant = original.wide(name, case.feeds)
    if meant is None and case.distribution == "special" and not numeric_traits.sure_nans:
        return "a maximum of NaN may be taken or not by its place"
    if meant is None or meant.value.shape != expected.shape:
        return None
    overflowing = (
        ("large", "huge") if kind == "f" or numeric_traits.tells_nan else ("large", "huge", "special")
    )
    if not exact and numeric_traits.rounds and not meant.finite and case.distribution in overflowing:
        return "in the original, overflow decides"
    if kind != "f":
        same = not exact and (
            identical(meant.value, actual)
            or (numeric_traits.rounds and original.is_tie(name, case.feeds, actual))
        )
        return "in the original, rounding decides" if same else None
    if not numeric_traits.sure_nans:
        dropped = original.without_nan(name, case.feeds)
        by_place = np.isnan(meant.value) & ~np.isnan(meant.value if dropped is None else dropped)
        if _agree_but(by_place, expected, actual, tolerance):
            return "a maximum of NaN is taken or not by its place"
    with np.errstate(all="ignore"):
        wide = meant.value.astype(expected.dtype)
    plain = original.output(name, case.feeds)
    trusted = plain is not None and _explains(plain, wide, expected, tolerance)
    if (
        not exact
        and trusted
        and _as_near(wide, expected, actual, tolerance, poles=case.distribution != "tiny")
    ):
        return "in the original, rounding decides"
    halved = plain if numeric_traits.halves else None
    if halved is not None and halved.shape == wide.shape:  # no runtime computes all of them so
        with np.errstate(all="ignore"):
            nearer = np.where(np.abs(actual - wide) <= np.abs(actual - halved), wide, halved)
            # where halves overflow and the original departs from the specification, so may the candidate
            strays = ~np.isfinite(halved) & ~np.isclose(halved, expected, equal_nan=True)
            nearer = np.where(strays, actual, nearer)
        if compare(nearer.astype(wide.dtype), actual, tolerance).reason is None:
            return "halves are computed in either precision"
    return None


def _differ_by_zeros(
    name: str, case: Case, actual: Any, references: tuple[Reference, Reference], tolerance: Tolerance
) -> bool:
    """Whether both models agree without negative zeros, and ``actual`` is what the candidate means."""
    told = references[1].output(name, case.feeds)
    if told is None or compare(told, actual, tolerance).reason is not None:
        return False
    one, other = (reference.without_negative_zeros(name, case.feeds) for reference in references)
    return one is not None and other is not None and compare(one, other, tolerance).reason is None


def _explains(plain: Any, wide: Any, expected: Any, tolerance: Tolerance) -> bool:
    """Whether precision explains the distance of ``expected`` from ``wide``, and not another computation.

    Both come from the reference evaluator; ``plain`` is in the precision of ``expected``. An evaluator that
    computes something else than onnxruntime, such as an empty window of a pool, does so in any precision.
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
    """Whether ``actual`` is about as near to ``wide`` as ``expected``.

    Where ``poles`` is true, elements do not count of which only one of ``wide`` and ``expected`` is finite.
    It is false for denormal inputs, of which reciprocals overflow: an infinity has to stay one.
    """
    if not poles and (np.isfinite(wide) & ~np.isfinite(expected) & np.isfinite(actual)).any():
        return False
    with np.errstate(all="ignore"):
        alike = np.isclose(wide, expected, equal_nan=True)
    strays = ~(np.isfinite(wide) & np.isfinite(expected)) & ~alike
    wide, expected, actual = (np.where(strays, 0, value) for value in (wide, expected, actual))
    slack = [_MARGIN * error for error in largest_deviations(wide, expected)]
    return compare(wide, actual, tolerance, slack=slack).reason is None


def _agree_but(excepted: Any, expected: Any, actual: Any, tolerance: Tolerance) -> bool:
    """Whether two arrays of floats agree except where ``excepted`` is true."""
    left, right = (np.where(excepted, 0, value).astype(expected.dtype) for value in (expected, actual))
    return compare(left, right, tolerance).reason is None
