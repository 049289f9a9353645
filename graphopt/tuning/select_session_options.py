"""Select the session options that make the final graph faster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from graphopt.ort.session_options import SessionChoice
from graphopt.tuning.measurements import Finding, Measurer, conclusion
from graphopt.tuning.screening import screen
from graphopt.tuning.search_space import Variant


def try_choices(
    reference: Variant, choices: Sequence[SessionChoice], measurer: Measurer
) -> tuple[SessionChoice, list[Finding]]:
    """The session options that make ``reference`` faster, and findings about each of ``choices``."""
    variants = [replace(reference, choice=choice) for choice in choices]
    measurements = screen(reference, variants, measurer, 1.0)
    winners = [
        (measurement.ratio, choice)
        for measurement, choice in zip(measurements, choices, strict=True)
        if measurement is not None and measurement.pays
    ]
    kept = _best_combination(reference, sorted(winners, key=lambda item: item[0]), measurer)
    return kept, [
        Finding(
            str(choice), None, measurement, not kept.plain and kept | choice == kept, conclusion(measurement)
        )
        for measurement, choice in zip(measurements, choices, strict=True)
    ]


def _best_combination(
    reference: Variant, winners: Sequence[tuple[float, SessionChoice]], measurer: Measurer
) -> SessionChoice:
    """The combination of all winners, if it is faster than the best of them; otherwise the best."""
    if not winners:
        return SessionChoice()
    best = winners[0][1]
    everything = best
    for _, choice in winners[1:]:
        if everything.threads is None or choice.threads is None:
            everything |= choice
    if everything == best or measurer.spent() >= 1.0:
        return best
    first, second = (replace(reference, choice=choice) for choice in (best, everything))
    (measurement,) = screen(first, [second], measurer, 1.0)
    return everything if measurement is not None and measurement.pays else best
