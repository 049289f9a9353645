"""Measure the conditioning of outputs: their deviation under other roundings of inputs and inner results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from graphopt.errors import ResourceLimit, RuntimeFailure, SystemExhausted
from graphopt.inputs.feeds import Feeds
from graphopt.ort.model_runs import Runner
from graphopt.verification.case import Case
from graphopt.verification.numeric_traits import NumericTraits
from graphopt.verification.output_comparison import Deviation, discrete_deviations, sensitivities
from graphopt.verification.tolerances import INPUT_PERTURBATIONS

#: Deviations are estimates: a difference may be larger by this factor.
MARGIN = 4.0
#: Number of runs with differently rounded intermediate results.
_DRAWS = 4

#: Per output and tensor.
Deviations = list[list[Deviation]]


def input_sensitivity(
    case: Case, original: Runner, output_traits: Sequence[NumericTraits]
) -> Deviations | None:
    """The deviation of ``original``'s outputs if float inputs are rounded differently, cached in ``case``.

    For outputs of types other than floats, non-finite inputs count as unknown: if an element is NaN, the
    index of the largest element is meaningless, and changes if NaN is replaced. This does not apply to
    outputs that distinguish NaN from numbers.
    """
    if case.input_sensitivity is None:
        variants = [(feeds, False) for feeds in jittered(case.feeds)]
        variants += [(feeds, True) for feeds in with_finite(case.feeds)]
        for feeds, replaced in variants:
            case.input_sensitivity = _merged(
                case.input_sensitivity,
                _deviation_from_case(case, original, output_traits, feeds, replaced=replaced),
            )
    return case.input_sensitivity


def rounding_sensitivity(
    case: Case, perturbed: Callable[[], Runner | None], output_traits: Sequence[NumericTraits]
) -> Deviations | None:
    """The deviation of the outputs if intermediate results are also rounded differently, cached in ``case``.

    Such roundings reveal more than roundings of inputs: after integers, and where rounded inputs preserve a
    symmetry that cancels errors.

    Args:
        perturbed: returns the original with differently rounded intermediate results in each run.
    """
    if case.rounding_sensitivity is None:
        runner = perturbed()
        case.rounding_sensitivity = case.input_sensitivity
        if runner is not None:
            for _ in range(_DRAWS):
                moved = _deviation_from_case(case, runner, output_traits, case.feeds, replaced=False)
                case.rounding_sensitivity = _merged(case.rounding_sensitivity, moved)
    return case.rounding_sensitivity


def _deviation_from_case(
    case: Case, runner: Runner, output_traits: Sequence[NumericTraits], feeds: Feeds, *, replaced: bool
) -> Deviations | None:
    """The deviation of the outputs for ``feeds`` from the outputs of ``case``; ``None`` if the run fails."""
    try:
        outputs = runner.run("off", feeds)
    except SystemExhausted:
        raise
    except (RuntimeFailure, ResourceLimit):
        return None
    measure = discrete_deviations if replaced else sensitivities
    return [
        measure(a, b if _concerns(numeric_traits, replaced) else a)
        for numeric_traits, a, b in zip(output_traits, case.off, outputs, strict=True)
    ]


def _merged(one: Deviations | None, other: Deviations | None) -> Deviations | None:
    if one is None or other is None:
        return one or other
    return [list(map(Deviation.merged, old, new)) for old, new in zip(one, other, strict=True)]


def _concerns(numeric_traits: NumericTraits, replaced: bool) -> bool:
    """Whether an output may change with roundings, or with the replacement of NaN."""
    if replaced:
        return not numeric_traits.detects_nan and (numeric_traits.rounds or not numeric_traits.sure_nans)
    return numeric_traits.rounds


def jittered(feeds: Feeds) -> Iterator[Feeds]:
    """``feeds`` with every float rounded differently, in two ways; nothing without floats."""
    for seed in range(2):
        generator = np.random.default_rng(seed)
        moved = {}
        for name, value in feeds.items():
            size = INPUT_PERTURBATIONS.get(str(getattr(value, "dtype", "")))
            if size is None:
                continue
            with np.errstate(all="ignore"):
                moved[name] = _rounded(value, size, generator)
        if moved:
            yield {**feeds, **moved}


def _rounded(value: Any, size: float, generator: np.random.Generator) -> Any:
    exact = value.astype(np.float64)
    noise = size * generator.uniform(-1, 1, exact.shape)
    return np.where(exact == 0, noise / 8, exact * (1 + noise)).astype(value.dtype)


def with_finite(feeds: Feeds, *, nans: bool = True) -> Iterator[Feeds]:
    """``feeds`` with 1000, then -1000, in place of infinities and, if ``nans``, NaNs; nothing if none."""
    for filler in (1e3, -1e3):
        changed = {}
        for name, value in feeds.items():
            if str(getattr(value, "dtype", "")) in INPUT_PERTURBATIONS:
                exact = value.astype(np.float64)
                if not np.isfinite(exact).all():
                    kept = np.isfinite(exact) if nans else ~np.isinf(exact)
                    changed[name] = np.where(kept, value, np.array(filler, value.dtype))
        if changed:
            yield {**feeds, **changed}
