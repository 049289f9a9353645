"""Session options: which of them pay for the graph that stays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from graphopt.ort.session_options import SessionChoice
from graphopt.tuning.measurements import LATE, Finding, Races
from graphopt.tuning.screening import screen
from graphopt.tuning.search_space import Variant


def try_choices(
    reference: Variant, choices: Sequence[SessionChoice], races: Races
) -> tuple[SessionChoice, list[Finding]]:
    """The session options that pay for the graph of ``reference``, and what each of ``choices`` gave."""
    variants = [replace(reference, choice=choice) for choice in choices]
    readings = screen(reference, variants, races, 1.0)
    winners = [
        (reading.ratio, choice)
        for reading, choice in zip(readings, choices, strict=True)
        if reading is not None and reading.faster and not reading.slower
    ]
    findings = []
    kept = _combined(reference, sorted(winners, key=lambda item: item[0]), races)
    for reading, choice in zip(readings, choices, strict=True):
        stays = not kept.plain and kept | choice == kept
        if reading is None:
            reason = LATE
        elif reading.failure:
            reason = reading.failure
        elif reading.same:
            reason = "onnxruntime runs the same with and without"
        elif reading.slower or reading.faster:
            reason = "slower" if reading.slower else "faster"
        else:
            reason = "no difference"
        findings.append(Finding(str(choice), None, reading, stays, reason))
    return kept, findings


def _combined(
    reference: Variant, winners: Sequence[tuple[float, SessionChoice]], races: Races
) -> SessionChoice:
    """The winners together, if that is faster than the best of them; else the best of them."""
    if not winners:
        return SessionChoice()
    best = winners[0][1]
    everything = best
    for _, choice in winners[1:]:
        if everything.threads is None or choice.threads is None:
            everything |= choice
    if everything == best or races.spent() >= 1.0:
        return best
    first, second = (replace(reference, choice=choice) for choice in (best, everything))
    (reading,) = screen(first, [second], races, 1.0)
    return everything if reading is not None and reading.faster and not reading.slower else best
