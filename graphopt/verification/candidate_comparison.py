"""Compare the runs of one candidate with the original's outputs, and find excuses for differences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from graphopt import ir
from graphopt.errors import ResourceLimit, RuntimeFailure
from graphopt.inputs.value_generator import Distribution
from graphopt.numerics import Numerics
from graphopt.ops import traits
from graphopt.ort.model_runs import Runner
from graphopt.ort.session import Optimizations
from graphopt.process.child import ProcessCrashed
from graphopt.util.text_tables import counted
from graphopt.verification.empty_tensors import Unreliable
from graphopt.verification.ill_conditioning import excuse_for
from graphopt.verification.numeric_traits import NumericTraits
from graphopt.verification.onnx_reference import Reference
from graphopt.verification.output_comparison import (
    Coarsest,
    Deviation,
    NonFinite,
    Outcome,
    Tolerance,
    compare,
    identical,
    leaves,
    same_kind,
)
from graphopt.verification.reference_cases import Case
from graphopt.verification.rounding_sensitivity import (
    input_sensitivity,
    jittered,
    rounding_sensitivity,
    with_finite,
)
from graphopt.verification.verdict import Row

#: Number of identical runs after which an output counts as constant.
_DRAWS = 20
#: Deviations are estimates: a difference may be larger by this factor.
_MARGIN = 4.0
#: Factor by which the sum of a tensor's differences may exceed the sum for another rounding.
_SPREAD = 16.0


@dataclass(frozen=True)
class Judge:
    """Compares one candidate's runs with the cases.

    Attributes:
        outputs: names of the outputs.
        candidate: runs the candidate.
        numerics: class of the rewrites, which sets the requirements.
        output_traits: numeric traits of each output.
        rounding: for each output, the absolute rounding error of its operator.
        original: runs the original, to measure its conditioning after a difference; ``None`` to skip this.
        references: reference evaluations of the original and of the candidate, for some differences.
        bits: require bit-identical outputs without optimizations.
        draws_random: whether the original, and therefore the candidate, must draw random numbers.
        empties: whether some tensors are empty for all inputs.
        perturbed: returns the original with differently rounded intermediate results in each run.
        unreliable: outputs that onnxruntime computes wrongly on empty tensors. Only their types and correct
            shapes are compared.
    """

    outputs: Sequence[str]
    candidate: Runner
    numerics: Numerics
    output_traits: Sequence[NumericTraits]
    rounding: Sequence[float]
    original: Runner | None
    references: tuple[Reference, Reference] | None = None
    bits: bool = False
    draws_random: bool = True
    empties: bool = False
    perturbed: Callable[[], Runner | None] = lambda: None
    unreliable: Callable[[Case], Unreliable] = lambda case: Unreliable()

    def rows(self, cases: Iterable[Case]) -> list[Row]:
        """The rows of all cases, at all optimization levels at which the original runs.

        The search for excuses is slow. It is skipped for an output with an earlier difference without excuse.
        """
        found, failed = [], list[int]()
        for case in cases:
            if case.distribution == "huge" and self.numerics is not Numerics.EXACT:
                continue  # another order of evaluation may overflow
            expectations: dict[Optimizations, list[Any] | None] = {"off": case.off, "default": case.default}
            for level, expected in expectations.items():
                if expected is None:
                    continue
                row, failure = self._row(case, level, expected, failed)
                found.append(row)
                if isinstance(failure, ProcessCrashed | ResourceLimit):
                    return found  # each further crash would cost a new process
        return found

    def _row(
        self, case: Case, level: Optimizations, expected: list[Any], failed: list[int]
    ) -> tuple[Row, RuntimeFailure | ResourceLimit | None]:
        """The row for ``case`` at ``level``, and the failure if the candidate does not run.

        ``failed`` collects the indices of outputs that are wrong in some case.
        """

        def row(delta: float | None, output: str, ok: bool, reason: str | None, same: bool = False) -> Row:
            return Row(case.binding, case.distribution, level, delta, output, ok, reason, identical=same)

        try:
            actual = self.candidate.run(level, case.feeds)
            if level == "off" and self.draws_random and case.varying and self._is_constant(case, actual):
                return row(None, "", False, "random outputs became constant"), None
        except (RuntimeFailure, ResourceLimit) as failure:
            return row(None, "", False, str(failure)), failure
        if len(actual) != len(expected):
            return row(None, "", False, f"{counted(len(expected), 'output')} became {len(actual)}"), None
        worst, remark = (0.0, ""), None
        for place, (a, b) in enumerate(zip(expected, actual, strict=True)):
            outcome, excuse = self._compare(case, level, place, a, b, excuses=place not in failed)
            if outcome.reason is not None:
                failed.append(place)
                return row(outcome.delta, self.outputs[place], False, outcome.reason), None
            remark = remark or excuse
            worst = max(worst, (outcome.delta, self.outputs[place]))
        same = all(identical(a, b) for a, b in zip(expected, actual, strict=True))
        return row(*worst, True, remark, same), None

    def _is_constant(self, case: Case, actual: list[Any]) -> bool:
        """Whether no output that varies in the original changes in further runs."""
        for _ in range(_DRAWS):
            again = self.candidate.run("off", case.feeds)
            if not all(identical(actual[place], again[place]) for place in case.varying):
                return False
        return True

    def _compare(
        self, case: Case, level: Optimizations, place: int, a: Any, b: Any, *, excuses: bool
    ) -> tuple[Outcome, str | None]:
        """The outcome for one output, and the excuse for an allowed difference, if ``excuses`` is true."""
        if place in case.random:
            return same_kind(a, b, shapes=place not in case.random_shapes), None
        demand = _nonfinite(self.numerics, case.distribution, level)
        strict = self.numerics is Numerics.EXACT and level == "off"
        numeric_traits = self.output_traits[place]
        tolerance = Tolerance.of(self.numerics, numeric_traits.coarsest)
        signed = strict and numeric_traits.sure_signs
        least = 0.0 if strict else self.rounding[place]
        slack = [_MARGIN * moved + least if level == "default" else least for moved in case.noise[place]]
        outcome = compare(a, b, tolerance, nonfinite=demand, signed_zeros=signed, slack=slack)
        bits = self.bits and level == "off"
        if outcome.reason is None and (not bits or identical(a, b)):
            return outcome, None
        unreliable = self.unreliable(case)
        if place in unreliable.shapes and getattr(a, "dtype", None) == getattr(b, "dtype", None):
            return Outcome(), None
        if place in unreliable.elements:
            return same_kind(a, b), None
        if outcome.reason is None:
            return replace(outcome, reason="not the same bits"), None
        if not strict and case.distribution == "special" and self._differ_by_nan(case, level, place):
            return outcome, None
        if not excuses:
            return outcome, None
        # the fastest checks are first
        unsure = numeric_traits.rounds or not numeric_traits.sure_nans
        if not bits and self.original is not None and unsure and (numeric_traits.halves or not strict):
            for known in self._deviations(case, place, self.original):
                slack = [_MARGIN * moved.largest + least for moved in known]
                sizes = [leaf.size for leaf in leaves(a)]
                totals = [
                    _SPREAD * moved.total + least * size for moved, size in zip(known, sizes, strict=False)
                ]
                excused = compare(a, b, tolerance, nonfinite=demand, slack=slack, totals=totals)
                if excused.reason is None:
                    return excused, f"{self.outputs[place]!r} is ill-conditioned: rounding moves it as much"
        if not strict and self._agree_if_finite(case, level, place, tolerance, demand):
            return Outcome(), f"{self.outputs[place]!r}: infinities are combined in another order"
        if self._specified(case, place, a, b, tolerance, demand):
            return Outcome(), f"{self.outputs[place]!r}: onnxruntime's kernels deviate from the specification"
        if bits:
            return outcome, None
        name = self.outputs[place]
        excuse = excuse_for(name, case, a, b, numeric_traits, self.references, tolerance, exact=strict)
        return (Outcome(), f"{name!r}: {excuse}") if excuse else (outcome, None)

    def _deviations(self, case: Case, place: int, original: Runner) -> Iterator[list[Deviation]]:
        """Deviations of an output of the original for other roundings: of inputs, then of all results."""
        moved = input_sensitivity(case, original, self.output_traits)
        if moved is not None:
            yield moved[place]
        moved = rounding_sensitivity(case, self.perturbed, self.output_traits)
        if moved is not None:
            yield moved[place]
        else:
            yield [Deviation(amount, float("inf")) for amount in case.noise[place]]

    def _differ_by_nan(self, case: Case, level: Optimizations, place: int) -> bool:
        """Whether a non-float tensor differs for every rounding of inputs with NaN but without infinities.

        The effect of infinities depends on the order of evaluation; the effect of NaN does not.
        """
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
                    [runner.run(level, rounded)[place] for runner in (self.original, self.candidate)]
                    for rounded in (feeds, *jittered(feeds))
                ]
                first = pairs[0][0]
                if np.any(np.all([(one == first) & (other != first) for one, other in pairs], axis=0)):
                    return True
            except (RuntimeFailure, ResourceLimit, ValueError):  # ValueError: shapes differ
                continue
        return False

    def _agree_if_finite(
        self, case: Case, level: Optimizations, place: int, tolerance: Tolerance, demand: NonFinite
    ) -> bool:
        """Whether both models agree if large numbers replace the infinities of the inputs.

        Another order of evaluation turns infinities into NaN (inf - inf). A later operator, such as a
        reciprocal or a comparison, turns both into finite numbers.
        """
        if self.original is None or case.distribution != "special":
            return False
        fed = list(with_finite(case.feeds, nans=False))
        try:
            pairs = [
                [runner.run(level, feeds)[place] for runner in (self.original, self.candidate)]
                for feeds in fed
            ]
        except (RuntimeFailure, ResourceLimit):
            return False
        return bool(pairs) and all(
            compare(one, other, tolerance, nonfinite=demand, slack=[self.rounding[place]]).reason is None
            for one, other in pairs
        )

    def _specified(
        self, case: Case, place: int, expected: Any, actual: Any, tolerance: Tolerance, demand: NonFinite
    ) -> bool:
        """Whether the reference evaluator decides a difference in favour of the candidate.

        The evaluator is consulted where kernels deviate from the specification: for empty tensors and, unless
        rewrites are exact, for NaN, which some kernels drop depending on its position. The candidate is right
        if the evaluator's result for the original is the candidate's output. If the evaluator's results for
        both models are equal, the candidate is also right if the original deviates from them, or if the
        tensor is empty and both models have its shape (some kernels leave empty sums uninitialized).
        """
        lenient = case.distribution == "special" and self.numerics is not Numerics.EXACT
        nothing = case.empty or self.empties
        if self.references is None or not (nothing or lenient):
            return False
        original, candidate = (
            reference.output(self.outputs[place], case.feeds) for reference in self.references
        )
        if original is None:
            return False

        def deviates(value: Any) -> bool:
            """Whether the shape or an element of ``value`` deviates."""
            difference = same_kind if nothing else partial(compare, tolerance=tolerance, nonfinite=demand)
            return difference(original, value).reason is not None

        same = [candidate] if deviates(expected) or not deviates(actual) else []
        return any(
            value is not None and compare(original, value, tolerance, nonfinite=demand).reason is None
            for value in [actual, *same]
        )


#: Spacing of floats below 1.
_SPACING: dict[Coarsest, float] = {
    "float64": 2.0**-53,
    "float32": 2.0**-24,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
    "float8": 2.0**-3,
}


def absolute_rounding(output: ir.Value, coarsest: Coarsest) -> float:
    """The absolute rounding error of the bounded operators that compute ``output``; 0 for other operators.

    Operators that only move elements are skipped. If several operators supply elements, all must be bounded.
    Constants have no error.
    """
    pending, visited, bounded = [output], dict.fromkeys([output]), False
    while pending:
        value = pending.pop()
        if ir.constant_of(value) is not None:
            continue
        node = value.producer()
        if node is None:
            return 0.0
        if node.domain == "" and node.op_type in traits.BOUNDED:
            bounded = True
            continue
        moved = traits.moved_inputs(node)
        if not moved:
            return 0.0
        pending += [item for item in moved if item not in visited]
        visited |= dict.fromkeys(moved)
    return _MARGIN * _SPACING[coarsest] if bounded else 0.0


def _nonfinite(numerics: Numerics, distribution: Distribution, level: Optimizations) -> NonFinite:
    """The requirement for NaN and infinities: the table in :mod:`graphopt.verification.verifier`."""
    if distribution == "special" and (level == "default" or numerics is Numerics.APPROXIMATES):
        return "ignore"
    if level == "default":
        return "robust"
    if numerics is Numerics.EXACT:
        return "same"
    if distribution == "special":
        return "set"
    if distribution == "large" or numerics is Numerics.APPROXIMATES:
        return "robust"
    return "overflow"
