"""Outputs of an original that change from run to run: random numbers, unwritten memory, and rounding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graphopt.errors import ResourceLimit, RuntimeFailure, SystemExhausted
from graphopt.numerics import Numerics
from graphopt.ort.model_runs import Runner
from graphopt.verification.case import Case, Cases
from graphopt.verification.numeric_traits import Randomness
from graphopt.verification.output_comparison import compare, identical, largest_deviations, leaves
from graphopt.verification.tolerances import SPACING, FloatType, Tolerance
from graphopt.verification.verdict import ORIGINAL_FAILS, Skipped

#: Additional runs that detect random outputs; numbers drawn from few values may agree by chance.
AGAIN = 10
#: Number of elements below which even this number of runs may agree by chance.
_FEW = 64


def share_random_outputs(cases: Sequence[Case], randomness: Randomness) -> None:
    """Treat small outputs that are random, or depend on random numbers, as random in all cases.

    A few random numbers, such as the zeros of a Dropout, may agree in all runs by chance: onnxruntime's
    generators start from seeds that depend on the position of the operator, and may yield equal first
    numbers.

    If no random numbers are drawn, outputs that are random in one case count as random in all: they contain
    unwritten memory or a state, and may be equal in two runs by chance. Outputs that vary, but depend on no
    random numbers, may converge: batch statistics, for example.
    """
    for case in cases:
        case.varying &= randomness.drawn
    if not randomness.draws:
        _share_unreproducible_outputs(cases)
        return
    drawn = sorted(randomness.indices.union(*(case.random for case in cases)))
    for case in cases:
        small = [place for place in drawn if getattr(case.off[place], "size", 0) < _FEW]
        case.random |= frozenset(small)


def find_unsteady_outputs(case: Case, cases: Cases, original: Runner) -> bool:
    """Whether some output of ``case`` changes from run to run; tried once for each case.

    Outputs that change by more than the tolerance contain unwritten memory or a state, and count as random in
    all ``cases``. Smaller changes are the ``drift`` of this case: they result from threads that add numbers
    in another order, for example. Signs of zeros and bits of NaN may also change. A model without random
    operators is repeated only after a difference, because runs are slow. A case that fails in such a
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
    return bool(case.random or case.unsteady)


def _share_unreproducible_outputs(cases: Sequence[Case]) -> None:
    garbage = frozenset[int]().union(*(case.random for case in cases))
    shapes = frozenset[int]().union(*(case.random_shapes for case in cases))
    for case in cases:
        case.random, case.random_shapes = garbage, shapes


def repeat(case: Case, original: Runner, times: int) -> None:
    """Run ``original`` again without optimizations, and record the changes of the outputs of ``case``.

    Raises:
        RuntimeFailure: ``original`` fails on some runs only.
        SystemExhausted: memory or threads do not suffice.
    """
    off = previous = case.off
    for _ in range(times):
        try:
            other = original.run("off", case.feeds)
        except SystemExhausted:  # an output may change between runs without being detected
            raise
        except ResourceLimit:  # the first run took almost all of the time limit
            return
        changed = _differing(off, other)
        case.unsteady |= frozenset(changed)
        moved = [largest_deviations(a, b) for a, b in zip(off, other, strict=True)]
        known = case.drift or moved
        case.drift = [list(map(max, old, new)) for old, new in zip(known, moved, strict=True)]
        case.random |= frozenset(
            place
            for place in changed
            if place not in case.random and _exceeds_tolerance(off[place], other[place])
        )
        case.varying &= frozenset(changed) & frozenset(_differing(previous, other))
        previous = other
        case.random_shapes |= frozenset(place for place in changed if float("inf") in moved[place])
    case.repeated = True


def _differing(one: Sequence[Any], other: Sequence[Any]) -> list[int]:
    return [place for place, (a, b) in enumerate(zip(one, other, strict=True)) if not identical(a, b)]


def _exceeds_tolerance(one: Any, other: Any) -> bool:
    """Whether two results differ by more than the widest tolerance for their coarsest float type."""
    names = [leaf.dtype.name for leaf in leaves(one)]
    types: list[FloatType] = [known for known in SPACING if any(name.startswith(known) for name in names)]
    coarsest: FloatType = max(types, key=SPACING.__getitem__, default="float32")
    return compare(one, other, Tolerance.of(Numerics.APPROXIMATES, coarsest)).reason is not None
