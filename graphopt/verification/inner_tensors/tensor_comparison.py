"""Compare two tensors with equal expected values, possibly in different precision."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphopt.errors import UsageError
from graphopt.numerics import Numerics
from graphopt.util.lazy_dataclass import dataclass
from graphopt.verification.numeric_traits import NumericTraits
from graphopt.verification.output_comparison import compare, identical, leaves
from graphopt.verification.tolerances import SPACING, FloatType, Tolerance


@dataclass(frozen=True)
class Tolerances:
    """The differences that are not a departure.

    Attributes:
        numerics: the numerics class, which determines the tolerance for each float type.
        rtol, atol: override the tolerance relative to the element, and relative to the largest element.
        bits: require identical bits.
    """

    numerics: Numerics = Numerics.REASSOCIATES
    rtol: float | None = None
    atol: float | None = None
    bits: bool = False

    def __post_init__(self) -> None:
        """Check the tolerances.

        Raises:
            UsageError: one is negative or NaN.
        """
        for name, given in (("rtol", self.rtol), ("atol", self.atol)):
            if given is not None and not given >= 0:
                raise UsageError(f"{name} is {given}", hint="give 0 or a positive number")

    def of(self, coarsest: FloatType) -> Tolerance:
        """The tolerance for computations whose least precise float type is ``coarsest``."""
        found = Tolerance.of(self.numerics, coarsest)
        return Tolerance(
            found.rtol if self.rtol is None else self.rtol, found.atol if self.atol is None else self.atol
        )


@dataclass(frozen=True)
class TensorError:
    """The difference of two tensors.

    Attributes:
        largest: the largest absolute difference of finite elements; for sequences, over all their tensors.
        relative: ``largest`` relative to the largest finite element; 0 if both are 0.
        is_identical: whether all bits are equal.
        reason: a description of the departure; ``None`` if the tensors agree.
    """

    largest: float
    relative: float
    is_identical: bool
    reason: str | None


def compare_tensors(
    a: Any, b: Any, traits: tuple[NumericTraits, NumericTraits], tolerances: Tolerances, rounding: float = 0.0
) -> TensorError:
    """Compare two results of :func:`graphopt.ort.session.run`.

    Floats of different precision are compared with the tolerance of the less precise type.

    Args:
        a, b: the results.
        traits: the numeric traits of both values.
        tolerances: the tolerances.
        rounding: the absolute rounding error of the operators that compute ``a``.
    """
    if identical(a, b):
        return TensorError(0.0, 0.0, True, None)
    types = {str(array.dtype) for array in (*leaves(a), *leaves(b))}
    wide = [_in_common_type(value) if len(types) > 1 else value for value in (a, b)]
    coarsest = max((one.coarsest for one in traits), key=lambda kind: SPACING[kind])
    largest = relative = 0.0
    for one, other in zip(leaves(wide[0]), leaves(wide[1]), strict=False):
        error, scale = _error(one, other)
        largest = max(largest, error)
        relative = max(relative, error / scale if scale else 0.0)
    if tolerances.bits:
        reason: str | None = "not the same bits"
    elif _is_rounding_of_quantized(a, b, largest, tolerances):
        reason = None
    else:
        slack = [0.0 if array.dtype.kind in "iub" else rounding for array in leaves(wide[0])]
        tolerance = tolerances.of(coarsest)
        reason = compare(wide[0], wide[1], tolerance, nonfinite="overflow", slack=slack).reason
    return TensorError(largest, relative, False, reason)


def _in_common_type(value: Any) -> Any:
    """``value`` with all floats converted to double precision."""
    if isinstance(value, list | tuple):
        return [_in_common_type(item) for item in value]
    is_float = isinstance(value, np.ndarray) and (
        value.dtype.kind == "f" or value.dtype.name.startswith(("float", "bfloat"))
    )
    return value.astype(np.float64) if is_float else value


def _is_rounding_of_quantized(a: Any, b: Any, largest: float, tolerances: Tolerances) -> bool:
    """Whether two tensors of 8-bit integers, as in quantized models, differ by at most one step."""
    if tolerances.numerics is Numerics.EXACT or largest > 1.0:
        return False
    arrays = (a, b)
    return all(
        isinstance(x, np.ndarray) and x.dtype.kind in "iu" and x.dtype.itemsize == 1 for x in arrays
    ) and (a.shape == b.shape and a.dtype == b.dtype)


def _error(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> tuple[float, float]:
    """The largest difference of finite elements, and the largest finite element of ``a``."""
    if a.shape != b.shape or a.dtype.kind in "OUS" or a.size == 0:
        return 0.0, 0.0
    kinds = a.dtype.kind, b.dtype.kind
    if "c" in kinds or kinds == ("b", "b"):
        return float(np.count_nonzero(a != b) > 0), 1.0
    x, y = a.astype(np.float64), b.astype(np.float64)
    both = np.isfinite(x) & np.isfinite(y)
    error = np.abs(np.subtract(x, y, where=both, out=np.zeros_like(x)))
    return float(error.max()), float(np.abs(np.where(np.isfinite(x), x, 0.0)).max())
