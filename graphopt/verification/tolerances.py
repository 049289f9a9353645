"""The tolerances of the verifier, by float type."""

from __future__ import annotations

from typing import Literal

from graphopt.numerics import Numerics
from graphopt.util.lazy_dataclass import dataclass

FloatType = Literal["float64", "float32", "float16", "bfloat16", "float8"]

#: (rtol, atol) by the coarsest float type in the model and by numerics: the allowed error relative to the
#: element, and to the largest element of the tensor.
_TOLERANCES: dict[FloatType, tuple[tuple[float, float], ...]] = {
    "float64": ((1e-11, 1e-12), (1e-9, 1e-10), (1e-3, 1e-3)),
    "float32": ((1e-5, 1e-6), (5e-5, 5e-6), (1e-2, 2e-3)),
    "float16": ((2e-3, 1e-3), (3e-3, 1.5e-3), (3e-2, 1e-2)),
    "bfloat16": ((1.6e-2, 8e-3), (2.4e-2, 1.2e-2), (1e-1, 4e-2)),
    "float8": ((1.3e-1, 7e-2), (2.5e-1, 1.3e-1), (3e-1, 2e-1)),
}
#: Spacing of floats below 1.
SPACING: dict[FloatType, float] = {
    "float64": 2.0**-53,
    "float32": 2.0**-24,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
    "float8": 2.0**-3,
}
#: Relative perturbations of inputs, by type, that simulate the roundings inside a model.
INPUT_PERTURBATIONS = {"float32": 1e-6, "float64": 1e-14, "float16": 1e-3, "bfloat16": 8e-3}


@dataclass(frozen=True)
class Tolerance:
    """Allowed difference of two floats: ``|a - b| <= rtol * |a| + atol * max|a|``."""

    rtol: float
    atol: float

    @classmethod
    def of(cls, numerics: Numerics, coarsest: FloatType = "float32") -> Tolerance:
        """The tolerance for a class of rewrites and the coarsest float type of a computation."""
        return cls(*_TOLERANCES[coarsest][numerics])
