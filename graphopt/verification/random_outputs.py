"""Outputs of an original that change from run to run: random ones, and those of unwritten memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graphopt.errors import ResourceLimit, RuntimeFailure
from graphopt.ort.model_runs import Runner
from graphopt.verification.case import Case, Cases
from graphopt.verification.numeric_traits import Randomness
from graphopt.verification.output_comparison import identical, largest_deviations
from graphopt.verification.verdict import ORIGINAL_FAILS, Skipped

#: Additional runs that detect random outputs; numbers drawn from few values may agree by chance.
AGAIN = 10
#: Number of elements below which even this number of runs may agree by chance.
_FEW = 64


def share_random_outputs(cases: Sequence[Case], randomness: Randomness) -> None:
    """Treat small outputs that are random, or depend on random numbers, as random in all cases.

    A few random numbers, such as the zeros of a Dropout, may agree in all runs by chance: onnxruntime's
    generators start from seeds that depend on the place of the operator, and may give equal first numbers.

    If no random numbers are drawn, outputs that change from run to run in one case count as random in all:
    they contain unwritten memory or a state, and may be equal in two runs by chance.
    """
    if not randomness.draws:
        _share_unreproducible_outputs(cases)
        return
    drawn = sorted(randomness.indices.union(*(case.random for case in cases)))
    for case in cases:
        small = [place for place in drawn if getattr(case.off[place], "size", 0) < _FEW]
        case.random |= frozenset(small)


def find_unsteady_outputs(case: Case, cases: Cases, original: Runner) -> bool:
    """Whether some output of ``case`` changes from run to run; tried once for each case.

    Such outputs contain unwritten memory or a state, and count as random in all ``cases``. A model without
    random operators is repeated only after a difference, because runs are slow. A case that fails in such a
    repetition is skipped: it is ``flaky``.
    """
    if not case.repeated:
        case.repeated = True
        try:
            repeat(case, original, AGAIN)
        except RuntimeFailure as failure:
            case.flaky = True
            what = f"{case.distribution} inputs at {case.binding}"
            cases.skipped.append(Skipped(what, ORIGINAL_FAILS, str(failure)))
        _share_unreproducible_outputs(cases.found)
    return bool(case.random)


def _share_unreproducible_outputs(cases: Sequence[Case]) -> None:
    garbage = frozenset[int]().union(*(case.random for case in cases))
    shapes = frozenset[int]().union(*(case.random_shapes for case in cases))
    for case in cases:
        case.random, case.random_shapes = garbage, shapes


def repeat(case: Case, original: Runner, times: int) -> None:
    """Run ``original`` again without optimizations, and note the outputs of ``case`` that change.

    Raises:
        RuntimeFailure: ``original`` fails on some runs only.
    """
    off = previous = case.off
    for _ in range(times):
        try:
            other = original.run("off", case.feeds)
        except ResourceLimit:  # the first run took almost all of the time limit
            return
        changed = _differing(off, other)
        case.random |= frozenset(changed)
        case.varying &= frozenset(changed) & frozenset(_differing(previous, other))
        previous = other
        case.random_shapes |= frozenset(
            place for place in changed if float("inf") in largest_deviations(off[place], other[place])
        )
    case.repeated = True


def _differing(one: Sequence[Any], other: Sequence[Any]) -> list[int]:
    return [place for place, (a, b) in enumerate(zip(one, other, strict=True)) if not identical(a, b)]
