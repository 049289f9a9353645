"""Excuses: differences between a candidate and the original that are not the fault of the candidate.

The original is ill-conditioned, infinities are combined in another order, kernels deviate from the
specification, or the reference evaluator confirms the candidate (:mod:`.ill_conditioning`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from graphopt.errors import ResourceLimit, RuntimeFailure, SystemExhausted
from graphopt.numerics import Numerics
from graphopt.ort.model_runs import Runner
from graphopt.ort.session import Optimizations
from graphopt.util.lazy_dataclass import dataclass
from graphopt.verification.case import Case
from graphopt.verification.ill_conditioning import excuse_for
from graphopt.verification.numeric_traits import NumericTraits
from graphopt.verification.onnx_reference import Reference
from graphopt.verification.output_comparison import (
    Deviation,
    NonFinite,
    Outcome,
    compare,
    leaves,
    same_kind,
)
from graphopt.verification.rounding_sensitivity import (
    MARGIN,
    input_sensitivity,
    jittered,
    rounding_sensitivity,
    with_finite,
)
from graphopt.verification.tolerances import Tolerance

#: Factor by which the sum of a tensor's differences may exceed the sum for another rounding.
_SPREAD = 16.0


@dataclass(frozen=True)
class Difference:
    """A difference in one output of one run.

    Attributes:
        case: the inputs.
        level: the optimization level.
        place: the index of the output.
        expected: the original's output.
        actual: the candidate's output.
        tolerance: for floats.
        demand: the requirement for NaN and infinities.
        least: the absolute difference that is always allowed.
        strict: whether every bit that kernels determine must be unchanged.
        bits: whether all bits must be unchanged.
    """

    case: Case
    level: Optimizations
    place: int
    expected: Any
    actual: Any
    tolerance: Tolerance
    demand: NonFinite
    least: float
    strict: bool
    bits: bool

    def disagreement(self, expected: Any, actual: Any, **slack: Any) -> str | None:
        """The reason why other values differ under the same requirements; ``None`` if they agree."""
        return compare(expected, actual, self.tolerance, nonfinite=self.demand, **slack).reason


@dataclass(frozen=True)
class Excuses:
    """Finds excuses for differences of one candidate.

    Attributes:
        outputs: names of the outputs.
        candidate: runs the candidate.
        numerics: class of the rewrites.
        output_traits: numeric traits of each output.
        rounding: for each output, the absolute rounding error of its operator.
        original: runs the original, to measure its conditioning; ``None`` to skip this.
        references: reference evaluations of the original and of the candidate.
        empties: whether some tensors are empty for all inputs.
        perturbed: returns the original with differently rounded intermediate results in each run.
    """

    outputs: Sequence[str]
    candidate: Runner
    numerics: Numerics
    output_traits: Sequence[NumericTraits]
    rounding: Sequence[float]
    original: Runner | None
    references: tuple[Reference, Reference] | None
    empties: bool
    perturbed: Callable[[], Runner | None]

    def find(self, difference: Difference) -> tuple[Outcome, str] | None:
        """The excuse for ``difference``, with the remaining outcome; the fastest checks run first."""
        case, place, strict = difference.case, difference.place, difference.strict
        name, numeric_traits = self.outputs[place], self.output_traits[place]
        unsure = numeric_traits.rounds or not numeric_traits.sure_nans
        if not difference.bits and unsure and (numeric_traits.halves or not strict):
            excused = self._explained_by_rounding(difference)
            if excused is not None:
                return excused, f"{name!r} is ill-conditioned: rounding moves it as much"
        if not strict and self._agree_if_finite(difference):
            return Outcome(), f"{name!r}: infinities are combined in another order"
        if self._reference_confirms(difference):
            return Outcome(), f"{name!r}: onnxruntime's kernels deviate from the specification"
        if difference.bits:
            return None
        excuse = excuse_for(
            name,
            case,
            difference.expected,
            difference.actual,
            numeric_traits,
            self.references,
            difference.tolerance,
            exact=strict,
        )
        return (Outcome(), f"{name!r}: {excuse}") if excuse else None

    def _explained_by_rounding(self, difference: Difference) -> Outcome | None:
        """The outcome if other roundings change the original's output by this difference; or ``None``."""
        if self.original is None:
            return None
        least, sizes = difference.least, [leaf.size for leaf in leaves(difference.expected)]
        for known in self._deviations(difference.case, difference.place, self.original):
            slack = [MARGIN * moved.largest + least for moved in known]
            totals = [_SPREAD * moved.total + least * size for moved, size in zip(known, sizes, strict=False)]
            excused = compare(
                difference.expected,
                difference.actual,
                difference.tolerance,
                nonfinite=difference.demand,
                slack=slack,
                totals=totals,
            )
            if excused.reason is None:
                return excused
        return None

    def _deviations(self, case: Case, place: int, original: Runner) -> Iterator[list[Deviation]]:
        """Deviations of an output of the original if its inputs, then all results, are rounded otherwise."""
        moved = input_sensitivity(case, original, self.output_traits)
        if moved is not None:
            yield moved[place]
        moved = rounding_sensitivity(case, self.perturbed, self.output_traits)
        if moved is not None:
            yield moved[place]
        else:
            yield [Deviation(amount, float("inf")) for amount in case.noise[place]]

    def differ_by_nan(self, difference: Difference) -> bool:
        """Whether a non-float tensor differs for every rounding of inputs with NaN but without infinities.

        The effect of infinities depends on the order of evaluation; the effect of NaN does not. Such a
        difference has no excuse.
        """
        case, place = difference.case, difference.place
        dtype = getattr(case.off[place], "dtype", None)
        if (
            self.original is None
            or not self.output_traits[place].sure_nans
            or dtype is None
            or dtype.kind not in "iub"
        ):
            return False
        for feeds in with_finite(case.feeds, nans=False):
            try:
                pairs = [
                    [
                        runner.run(difference.level, rounded)[place]
                        for runner in (self.original, self.candidate)
                    ]
                    for rounded in (feeds, *jittered(feeds))
                ]
                first = pairs[0][0]
                if np.any(np.all([(one == first) & (other != first) for one, other in pairs], axis=0)):
                    return True
            except SystemExhausted:  # the difference may have an excuse
                raise
            except (RuntimeFailure, ResourceLimit, ValueError):  # ValueError: shapes differ
                continue
        return False

    def _agree_if_finite(self, difference: Difference) -> bool:
        """Whether both models agree if large numbers replace the infinities of the inputs.

        Another order of evaluation turns infinities into NaN (inf - inf). A later operator, such as a
        reciprocal or a comparison, turns both into finite numbers.
        """
        if self.original is None or difference.case.distribution != "special":
            return False
        place, slack = difference.place, [self.rounding[difference.place]]
        fed = list(with_finite(difference.case.feeds, nans=False))
        try:
            pairs = [
                [runner.run(difference.level, feeds)[place] for runner in (self.original, self.candidate)]
                for feeds in fed
            ]
        except SystemExhausted:
            raise
        except (RuntimeFailure, ResourceLimit):
            return False
        return bool(pairs) and all(
            difference.disagreement(one, other, slack=slack) is None for one, other in pairs
        )

    def _reference_confirms(self, difference: Difference) -> bool:
        """Whether the reference evaluator decides a difference in favour of the candidate.

        The evaluator is consulted where kernels deviate from the specification: for empty tensors and, unless
        rewrites are exact, for NaN, which some kernels drop depending on its position. The candidate is right
        if the evaluator's result for the original is the candidate's output. If the evaluator's results for
        both models are equal, the candidate is also right if the original deviates from them, or if the
        tensor is empty and both models have its shape (some kernels leave empty sums uninitialized).
        """
        case = difference.case
        lenient = case.distribution == "special" and self.numerics is not Numerics.EXACT
        nothing = case.empty or self.empties
        if self.references is None or not (nothing or lenient):
            return False
        original, candidate = (
            reference.output(self.outputs[difference.place], case.feeds) for reference in self.references
        )
        if original is None:
            return False

        def deviates(value: Any) -> bool:
            """Whether the shape or an element of ``value`` deviates."""
            if nothing:
                return same_kind(original, value).reason is not None
            return difference.disagreement(original, value) is not None

        same = [candidate] if deviates(difference.expected) or not deviates(difference.actual) else []
        return any(
            value is not None and difference.disagreement(original, value) is None
            for value in [difference.actual, *same]
        )
