"""Compare the runs of one candidate with the original's outputs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from graphopt import ir
from graphopt.errors import ResourceLimit, RuntimeFailure, SystemExhausted
from graphopt.inputs.value_generator import Distribution
from graphopt.numerics import Numerics
from graphopt.ops import traits
from graphopt.ort.model_runs import Runner
from graphopt.ort.session import Optimizations
from graphopt.process.child import ProcessCrashed
from graphopt.util.lazy_dataclass import dataclass
from graphopt.util.text_tables import counted
from graphopt.verification.case import Case
from graphopt.verification.empty_tensor_faults import Unreliable
from graphopt.verification.excuses import Difference, Excuses
from graphopt.verification.numeric_traits import NumericTraits
from graphopt.verification.onnx_reference import Reference
from graphopt.verification.output_comparison import (
    NonFinite,
    Outcome,
    compare,
    identical,
    same_kind,
)
from graphopt.verification.rounding_sensitivity import MARGIN
from graphopt.verification.tolerances import SPACING, FloatType, Tolerance
from graphopt.verification.verdict import Row

#: Number of identical runs after which an output counts as constant.
_DRAWS = 20
_CONSTANT = "random outputs became constant"


@dataclass(frozen=True)
class CandidateComparison:
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
        not_random: outputs that depend on random numbers in the original, but not in the candidate, by index.
        empties: whether some tensors are empty for all inputs.
        perturbed: returns the original with differently rounded intermediate results in each run.
        unreliable: outputs that onnxruntime computes wrongly on empty tensors. Only their types and correct
            shapes are compared.
        unsteady: repeats the original on a case, records changes between runs in ``drift``, ``unsteady`` and
            ``random``, and returns whether there are any.
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
    not_random: Collection[int] = ()
    empties: bool = False
    perturbed: Callable[[], Runner | None] = lambda: None
    unreliable: Callable[[Case], Unreliable] = lambda case: Unreliable()
    unsteady: Callable[[Case], bool] = lambda case: False

    def rows(self, cases: Iterable[Case]) -> list[Row]:
        """The rows of all cases, at all optimization levels at which the original runs.

        The search for excuses is slow, and is skipped for an output with an earlier difference without
        excuse.
        """
        found, failed = [], list[int]()
        for case in cases:
            if case.distribution == "huge" and self.numerics is not Numerics.EXACT:
                continue  # another order of evaluation may overflow
            expectations: dict[Optimizations, list[Any] | None] = {
                "off": case.off if case.compares_off else None,
                "default": case.default,
            }
            for level, expected in expectations.items():
                if expected is None:
                    continue
                row, failure = self._row(case, level, expected, failed)
                if not row.ok and case.flaky:
                    break
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
                return row(None, "", False, _CONSTANT), None
        except SystemExhausted:  # the candidate is not at fault
            raise
        except (RuntimeFailure, ResourceLimit) as failure:
            self.unsteady(case)
            return row(None, "", False, str(failure)), failure
        if len(actual) != len(expected):
            return row(None, "", False, f"{counted(len(expected), 'output')} became {len(actual)}"), None
        pairs, remark = list(zip(expected, actual, strict=True)), None
        found = [
            self._compare(case, level, place, *pair, excuses=False)[0] for place, pair in enumerate(pairs)
        ]
        faulty = [place for place, outcome in enumerate(found) if outcome.reason is not None]
        if faulty and self.unsteady(case):
            found = [
                self._compare(case, level, place, *pair, excuses=False)[0] for place, pair in enumerate(pairs)
            ]
            faulty = [place for place, outcome in enumerate(found) if outcome.reason is not None]
        for place in sorted(faulty, key=lambda place: -found[place].delta):  # the largest difference first
            if place not in failed:
                found[place], excuse = self._compare(case, level, place, *pairs[place], excuses=True)
                remark = remark or excuse
            outcome = found[place]
            if outcome.reason is not None:
                failed.append(place)
                return row(outcome.delta, self.outputs[place], False, outcome.reason), None
        worst = max([(0.0, ""), *zip((outcome.delta for outcome in found), self.outputs, strict=True)])
        same = all(identical(a, b) for a, b in zip(expected, actual, strict=True))
        return row(*worst, True, remark, same), None

    def _is_constant(self, case: Case, actual: list[Any]) -> bool:
        """Whether further runs reproduce all the outputs that vary in the original."""
        for _ in range(_DRAWS):
            again = self.candidate.run("off", case.feeds)
            if not all(identical(actual[place], again[place]) for place in case.varying):
                return False
        return True

    def _compare(
        self, case: Case, level: Optimizations, place: int, a: Any, b: Any, *, excuses: bool
    ) -> tuple[Outcome, str | None]:
        """The outcome for one output, and the excuse for an allowed difference, if ``excuses`` is true."""
        if place in self.not_random:
            return Outcome(reason=_CONSTANT), None
        if place in case.random:
            return same_kind(a, b, shapes=place not in case.random_shapes), None
        demand = _nonfinite(self.numerics, case.distribution, level)
        drift = case.drift[place] if case.drift else [0.0] * len(case.noise[place])
        strict = self.numerics is Numerics.EXACT and level == "off"
        numeric_traits = self.output_traits[place]
        tolerance = Tolerance.of(self.numerics, numeric_traits.coarsest)
        steady = place not in case.unsteady  # signs of zeros that change in the original may change
        signed = strict and numeric_traits.sure_signs and steady
        least = 0.0 if strict else self.rounding[place]
        noise = case.noise[place] if level == "default" else [0.0] * len(drift)
        slack = [MARGIN * (moved + drifted) + least for moved, drifted in zip(noise, drift, strict=True)]
        outcome = compare(a, b, tolerance, nonfinite=demand, signed_zeros=signed, slack=slack)
        bits = self.bits and level == "off" and steady
        if outcome.reason is None and (not bits or identical(a, b)):
            return outcome, None
        unreliable = self.unreliable(case)
        if place in unreliable.shapes and getattr(a, "dtype", None) == getattr(b, "dtype", None):
            return Outcome(), None
        if place in unreliable.elements:
            return same_kind(a, b), None
        if outcome.reason is None:
            return replace(outcome, reason="not the same bits"), None
        difference = Difference(case, level, place, a, b, tolerance, demand, least, strict=strict, bits=bits)
        if not strict and case.distribution == "special" and self._excuses.differ_by_nan(difference):
            return outcome, None
        if not excuses:
            return outcome, None
        return self._excuses.find(difference) or (outcome, None)

    @cached_property
    def _excuses(self) -> Excuses:
        return Excuses(
            outputs=self.outputs,
            candidate=self.candidate,
            numerics=self.numerics,
            output_traits=self.output_traits,
            rounding=self.rounding,
            original=self.original,
            references=self.references,
            empties=self.empties,
            perturbed=self.perturbed,
        )


def absolute_rounding(output: ir.Value, coarsest: FloatType) -> float:
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
    return MARGIN * SPACING[coarsest] if bounded else 0.0


def _nonfinite(numerics: Numerics, distribution: Distribution, level: Optimizations) -> NonFinite:
    """The requirement for NaN and infinities: the table in :mod:`graphopt.verification`."""
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
