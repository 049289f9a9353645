"""Compare one candidate's runs with what the original gave."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from graphopt import ir
from graphopt.errors import ResourceLimit, RuntimeFailure
from graphopt.inputs.sampling import Distribution
from graphopt.numerics import Numerics
from graphopt.ops import traits
from graphopt.ort.probe import Runner
from graphopt.ort.session import Optimizations
from graphopt.process.child import ProcessCrashed
from graphopt.verification.cases import Case
from graphopt.verification.compare import (
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
from graphopt.verification.empty_tensors import Unreliable
from graphopt.verification.ill_conditioning import excuse_for
from graphopt.verification.numeric_traits import NumericTraits
from graphopt.verification.reference import Reference
from graphopt.verification.sensitivity import input_sensitivity, jittered, rounding_sensitivity, with_finite
from graphopt.verification.verdict import Row

#: Runs after which what never changed is taken to be constant.
_DRAWS = 20
#: Deviations are estimates: a difference may be this many times as large.
_MARGIN = 4.0
#: All differences of a tensor together may be this many times as large as those of one other rounding.
_SPREAD = 16.0


@dataclass(frozen=True)
class Judge:
    """Compares one candidate's runs with the cases.

    Attributes:
        outputs: names of the outputs.
        candidate: the model to judge.
        numerics: sets what is demanded.
        rounding: for each output, the absolute error that its operator makes by itself.
        original: asked for its conditioning when a difference is found; ``None``: never.
        references: what the specification makes of the original and of the candidate, asked when some
            differences are found.
        bits: demand identical outputs where optimizations are off.
        output_traits: what is known of each output.
        draws_random: the original draws_random random numbers, and its candidates must go on doing so.
        empties: there are tensors without elements, whatever is fed.
        perturbed: the original with other roundings of its inner results in each run.
        unreliable: outputs that onnxruntime computes wrongly on empty tensors; only their types, and shapes
            where these are right, are compared.
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
        """Every case at every level that the original reaches.

        Excuses take long to find: after one difference without an excuse, none is sought for that output.
        """
        found, failed = [], list[int]()
        for case in cases:
            if case.distribution == "huge" and self.numerics is not Numerics.EXACT:
                continue  # another order may overflow
            expectations: dict[Optimizations, list[Any] | None] = {"off": case.off, "default": case.default}
            for level, expected in expectations.items():
                if expected is None:
                    continue
                row, failure = self._row(case, level, expected, failed)
                found.append(row)
                if isinstance(failure, ProcessCrashed | ResourceLimit):
                    return found  # once is enough, and each costs a new process
        return found

    def _row(
        self, case: Case, level: Optimizations, expected: list[Any], failed: list[int]
    ) -> tuple[Row, RuntimeFailure | ResourceLimit | None]:
        """What ``case`` gives at ``level``, and what went wrong where it gives nothing.

        ``failed`` holds the places of outputs that are wrong in some case; one found here is appended.
        """

        def row(delta: float | None, output: str, ok: bool, reason: str | None, same: bool = False) -> Row:
            return Row(case.binding, case.distribution, level, delta, output, ok, reason, identical=same)

        try:
            actual = self.candidate.run(level, case.feeds)
            if level == "off" and self.draws_random and case.varying and self._is_constant(case, actual):
                return row(None, "", False, "what was random is constant now"), None
        except (RuntimeFailure, ResourceLimit) as failure:
            return row(None, "", False, str(failure)), failure
        if len(actual) != len(expected):
            return row(None, "", False, f"{len(expected)} outputs became {len(actual)}"), None
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
        """Whether no output that varies in the original changes in a few more runs."""
        for _ in range(_DRAWS):
            again = self.candidate.run("off", case.feeds)
            if not all(identical(actual[place], again[place]) for place in case.varying):
                return False
        return True

    def _compare(
        self, case: Case, level: Optimizations, place: int, a: Any, b: Any, *, excuses: bool
    ) -> tuple[Outcome, str | None]:
        """The outcome for one output, and why a difference is allowed, if ``excuses`` may be sought."""
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
        # what takes least is tried first
        unsure = numeric_traits.rounds or not numeric_traits.sure_nans
        if not bits and self.original is not None and unsure and (numeric_traits.halves or not strict):
            for known in self._movements(case, place):
                slack = [_MARGIN * moved.largest + least for moved in known]
                sizes = [leaf.size for leaf in leaves(a)]
                totals = [
                    _SPREAD * moved.total + least * size for moved, size in zip(known, sizes, strict=False)
                ]
                excused = compare(a, b, tolerance, nonfinite=demand, slack=slack, totals=totals)
                if excused.reason is None:
                    return excused, f"{self.outputs[place]!r} is ill-conditioned: rounding moves it as much"
        if not strict and self._agree_if_finite(case, level, place, tolerance, demand):
            return Outcome(), f"{self.outputs[place]!r}: infinities meet in another order"
        if self._specified(case, place, a, b, tolerance, demand):
            return Outcome(), f"{self.outputs[place]!r}: onnxruntime's kernels stray from the specification"
        if bits:
            return outcome, None
        name = self.outputs[place]
        accident = excuse_for(name, case, a, b, numeric_traits, self.references, tolerance, exact=strict)
        return (Outcome(), f"{name!r}: {accident}") if accident else (outcome, None)

    def _movements(self, case: Case, place: int) -> Iterator[list[Deviation]]:
        """How far roundings move one of the original's outputs: of inputs, and of inner results, too."""
        assert self.original is not None
        moved = input_sensitivity(case, self.original, self.output_traits)
        if moved is not None:
            yield moved[place]
        moved = rounding_sensitivity(case, self.perturbed, self.output_traits)
        if moved is not None:
            yield moved[place]
        else:
            yield [Deviation(amount, float("inf")) for amount in case.noise[place]]

    def _differ_by_nan(self, case: Case, level: Optimizations, place: int) -> bool:
        """Whether a tensor of no floats differs where nothing but NaN is not finite, whatever the rounding.

        What comes of infinities hangs on the order of evaluation, but NaN stays what it is.
        """
        told = getattr(case.off[place], "dtype", None)
        if (
            self.original is None
            or not self.output_traits[place].sure_nans
            or told is None
            or told.kind not in "iub"
        ):
            return False
        for feeds in with_finite(case.feeds, nans=False):
            try:
                pairs = [
                    [runner.run(level, rounded)[place] for runner in (self.original, self.candidate)]
                    for rounded in (feeds, *jittered(feeds))
                ]
                first = pairs[0][0]
                if np.any(np.all([(told == first) & (other != first) for told, other in pairs], axis=0)):
                    return True
            except (RuntimeFailure, ResourceLimit, ValueError):  # or shapes differ
                continue
        return False

    def _agree_if_finite(
        self, case: Case, level: Optimizations, place: int, tolerance: Tolerance, demand: NonFinite
    ) -> bool:
        """Whether both models agree where large numbers are fed instead of infinities, and NaN as before.

        Another order of evaluation makes NaN of infinities (inf - inf), and a later operator such as a
        reciprocal or a comparison makes a number of either.
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
        """Whether the specification settles a difference in favour of the candidate.

        It is asked where kernels stray from it: where there are tensors without elements, and,
        unless every bit is to stay, of NaN, of which some make a number or not by its place. It does
        settle it where it makes of the original what the candidate gave; and where the original
        strays, or, without elements, nobody does in its shape (some kernels leave a sum over nothing
        uninitialized), also if it makes the same of both models.
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

        def strays(value: Any) -> bool:
            """In its shape, or, where there are elements, in what they are."""
            told = same_kind if nothing else partial(compare, tolerance=tolerance, nonfinite=demand)
            return told(original, value).reason is not None

        same = [candidate] if strays(expected) or not strays(actual) else []
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
    """The absolute error of the operator that computes the elements of ``output``, whatever its inputs.

    Operators that only move elements are looked through. Where several operators supply elements, each
    must have such an error; constants have none.
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
    """What is demanded of NaN and infinities: the table in :mod:`graphopt.verification.verifier`."""
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
