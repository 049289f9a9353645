"""Screening: measure many variants briefly, and measure variants that seem to differ again."""

from __future__ import annotations

from collections.abc import Sequence

from graphopt.tuning.measurements import Measurement, Measurer
from graphopt.tuning.search_space import Variant

#: Number of variants measured together, besides the reference and its twin.
_TOGETHER = 8


def screen(
    reference: Variant,
    variants: Sequence[Variant],
    measurer: Measurer,
    share: float,
    careful: frozenset[Variant] = frozenset(),
    expected: frozenset[Variant] = frozenset(),
) -> list[Measurement | None]:
    """A measurement of each variant, within ``share`` of the budget; a claimed difference is measured again.

    Results without timing are first, so that time is spent on variants that may differ. Variants in
    ``careful`` are also measured again if the first measurement was too rough. Variants in ``expected`` are
    expected to be slower, and are measured again only if they seem faster.
    """
    found: dict[int, Measurement] = {}
    waiting: list[int] = []
    for index, variant in enumerate(variants):
        if measurer.spent() >= share:
            break
        known = measurer.known(reference, variant)
        if known is not None:
            found[index] = known
            continue
        waiting.append(index)
        if len(waiting) == _TOGETHER:
            found |= _time(reference, variants, waiting, measurer, share, careful, expected)
            waiting = []
    if waiting and measurer.spent() < share:
        found |= _time(reference, variants, waiting, measurer, share, careful, expected)
    return [found.get(index) for index in range(len(variants))]


def _time(
    reference: Variant,
    variants: Sequence[Variant],
    indices: Sequence[int],
    measurer: Measurer,
    share: float,
    careful: frozenset[Variant],
    expected: frozenset[Variant],
) -> dict[int, Measurement]:
    """Measurements of some of ``variants``, by index; empty if there is no time for a required second one."""
    screened = measurer(reference, [variants[index] for index in indices], thorough=False)
    found = dict(zip(indices, screened, strict=True))
    doubtful = [
        index
        for index, measurement in found.items()
        if not measurement.failure
        and (measurement.claims or (measurement.rough and variants[index] in careful))
        and not (measurement.ratio > 1 and variants[index] in expected)
    ]
    if not doubtful:
        return found
    if measurer.spent() >= share:
        return {index: measurement for index, measurement in found.items() if index not in doubtful}
    again = measurer(reference, [variants[index] for index in doubtful], thorough=True)
    return found | {
        index: _common_claim(found[index], second) for index, second in zip(doubtful, again, strict=True)
    }


def _common_claim(first: Measurement, second: Measurement) -> Measurement:
    """The claim that two measurements support: the second's, if the first is on the same side."""
    return Measurement(
        second.ratio,
        second.band,
        second.faster and (first.faster or first.ratio < 1),
        second.slower and (first.slower or first.ratio > 1),
        same=second.same,
        failure=second.failure,
    )
