"""The search: which groups of rewrites and which session options stay.

It asks for readings of variants and decides, and knows nothing else. The rewrites of a group are
judged by leaving them out of the model that has all others. Groups are screened in few processes,
several at a time; only what seems to make a difference is measured again, thoroughly, in fresh
processes, so that a claim needs two measurements that agree. Then:

- A group that makes the model slower goes, or those of its rules that do. Slower in one of
  several shapes is slower.
- A group for *speed* stays only if it is measured to be faster. Those that make no difference each
  are also measured together, since two may do the same work, or each too little to be seen.
- Other rewrites, which make the graph smaller, stay if they are not slower.
- What is left is compared with the original. If it is slower, the rewrites for speed go, then what
  was not measured, then all.
- Session options are tried on the graph that stays, and are kept only if they are faster.

What there was no time for counts as no difference. The comparison with the original is always made.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from graphopt.runtime.session_choice import SessionChoice
from graphopt.tune.candidates import Group, Variant
from graphopt.tune.readings import Finding, Races, Reading

#: Variants that are measured at a time, besides the one of reference and its twin.
_TOGETHER = 4
#: Rules of a group that loses which are tried one by one.
_RULES = 4
#: Shares of the budget after which no more groups, and no more session options, are measured.
_GROUPS, _ALL = 0.6, 1.0
_LATE = "not measured: no time was left"


@dataclass
class Found:
    """What the search came to.

    Attributes:
        variant: what to make.
        groups, choices: what became of each.
        final: the result against the original, with onnxruntime's default session options.
        fallback: what was given up because the result was slower than the original.
    """

    variant: Variant
    groups: list[Finding] = field(default_factory=list)
    choices: list[Finding] = field(default_factory=list)
    final: Reading | None = None
    fallback: str | None = None


def search(groups: Sequence[Group], choices: Iterable[SessionChoice], races: Races) -> Found:
    """Decide what stays.

    Args:
        groups: the groups that changed something, in the order in which to measure them.
        choices: session options to try.
        races: measures variants.
    """
    found = _groups(groups, races)
    _check(found, groups, races)
    _choices(found, list(choices), races)
    return found


# Groups of rewrites ------------------------------------------------------------------------------


def _groups(groups: Sequence[Group], races: Races) -> Found:
    everything = Variant()
    readings = _measure(everything, [everything.without(group.owners) for group in groups], races, _GROUPS)
    off: dict[str, tuple[str, ...]] = {}
    for group, reading in zip(groups, readings, strict=True):
        if reading is not None and reading.faster:
            off[group.name] = _guilty(group, races)
    pool = [
        group
        for group, reading in zip(groups, readings, strict=True)
        if group.speed and group.name not in off and not (reading is not None and reading.slower)
    ]
    together = _together(pool, [owner for owners in off.values() for owner in owners], races)
    if together is None or not together.slower or together.faster:
        off |= {group.name: group.owners for group in pool}
    findings = [
        _finding(group, reading, off.get(group.name, ()), together if group in pool else None)
        for group, reading in zip(groups, readings, strict=True)
    ]
    return Found(Variant(frozenset(owner for owners in off.values() for owner in owners)), findings)


def _measure(
    reference: Variant, variants: Sequence[Variant], races: Races, share: float
) -> list[Reading | None]:
    """A reading of each variant, as long as ``share`` of the budget lasts; claims are measured twice."""
    found: list[Reading | None] = []
    for start in range(0, len(variants), _TOGETHER):
        batch = list(variants[start : start + _TOGETHER])
        if races.spent() >= share:
            found += [None] * len(batch)
            continue
        screened = races(reference, batch, thorough=False)
        doubtful = [index for index, reading in enumerate(screened) if reading.claims and not reading.failure]
        readings: list[Reading | None] = list(screened)
        if doubtful and races.spent() >= share:
            for index in doubtful:
                readings[index] = None
        elif doubtful:
            again = races(reference, [batch[index] for index in doubtful], thorough=True)
            for index, second in zip(doubtful, again, strict=True):
                readings[index] = _agreed(screened[index], second)
        found += readings
    return found


def _agreed(first: Reading, second: Reading) -> Reading:
    """What two measurements in a row allow to claim: what the second says, on the first one's side."""
    return Reading(
        second.ratio,
        second.band,
        second.faster and (first.faster or first.ratio < 1),
        second.slower and (first.slower or first.ratio > 1),
        same=second.same,
        failure=second.failure,
    )


def _guilty(group: Group, races: Races) -> tuple[str, ...]:
    """Of a group that makes the model slower, the one rule without which it is no slower; else all."""
    if len(group.owners) == 1 or races.spent() >= _ALL:
        return group.owners
    rules = group.owners[:_RULES]
    everything = Variant()
    readings = races(
        everything.without(group.owners), [everything.without([rule]) for rule in rules], thorough=True
    )
    innocent = [
        (reading.ratio, rule)
        for reading, rule in zip(readings, rules, strict=True)
        if not reading.slower and not reading.suspicious
    ]
    return (min(innocent)[1],) if innocent else group.owners


def _together(pool: Sequence[Group], off: Sequence[str], races: Races) -> Reading | None:
    """The model without what makes no difference one by one, against the model with all of it."""
    if len(pool) < 2 or races.spent() >= _GROUPS:
        return None
    reference = Variant(frozenset(off))
    owners = [owner for group in pool for owner in group.owners]
    return _measure(reference, [reference.without(owners)], races, _ALL)[0]


def _finding(
    group: Group, without: Reading | None, off: tuple[str, ...], together: Reading | None
) -> Finding:
    reading = None if without is None else without.inverse()
    kept = not set(group.owners) <= set(off)
    if without is None:
        reason = _LATE
    elif without.failure:
        reason = f"the model does not run without: {without.failure}"
    elif without.same:
        reason = "onnxruntime runs the same with and without"
    elif without.faster and kept:
        reason = f"faster without {', '.join(off)}"
    else:
        reason = "slower" if without.faster else "faster" if without.slower else "no difference"
    if together is not None and kept:
        reason += "; faster together with others"
    return Finding(group.name, group.rewrites, reading, kept, reason, off)


# The original -------------------------------------------------------------------------------------


def _check(found: Found, groups: Sequence[Group], races: Races) -> None:
    """Compare with the original, and give up what makes the result slower, ever more of it."""
    found.final = _against_original(found.variant, races)
    if not found.final.slower:
        return
    told = "the result was slower than the original"
    if found.final.failure:
        told = f"the result does not run: {found.final.failure}"
    unknown = {finding.name for finding in found.groups if finding.reading is None}
    for what, given_up in (
        ("all rewrites for speed", [group for group in groups if group.speed]),
        ("all rewrites for speed, or not measured", [g for g in groups if g.speed or g.name in unknown]),
    ):
        variant = found.variant.without(owner for group in given_up for owner in group.owners)
        if variant == found.variant or len(given_up) == len(groups):
            continue
        final = _against_original(variant, races)
        _give_up(found, given_up)
        found.variant, found.final = variant, final
        if not final.slower:
            found.fallback = f"{told}: {what} were reverted"
            return
    found.variant, found.final = Variant(original=True), Reading(same=True)
    found.fallback = f"{told}: all rewrites were reverted"
    _give_up(found, groups)


def _against_original(variant: Variant, races: Races) -> Reading:
    """The variant against the original; what seems slower is measured twice, and then is."""
    (reading,) = races(Variant(original=True), [variant], thorough=True)
    if not reading.suspicious:
        return reading
    (again,) = races(Variant(original=True), [variant], thorough=True)
    return Reading(again.ratio, again.band, slower=True) if again.suspicious else again


def _give_up(found: Found, groups: Sequence[Group]) -> None:
    """Tell that ``groups`` are reverted, too."""
    owners = {group.name: group.owners for group in groups}
    for index, finding in enumerate(found.groups):
        if finding.kept and finding.name in owners:
            reason = f"{finding.reason}; given up"
            found.groups[index] = replace(finding, kept=False, reason=reason, reverted=owners[finding.name])


# Session options ----------------------------------------------------------------------------------


def _choices(found: Found, choices: Sequence[SessionChoice], races: Races) -> None:
    """Try session options on the graph that stays; one that is faster stays, several only together."""
    reference = found.variant
    variants = [Variant(reference.off, reference.original, choice) for choice in choices]
    readings = _measure(reference, variants, races, _ALL)
    winners = [
        (reading.ratio, choice)
        for reading, choice in zip(readings, choices, strict=True)
        if reading is not None and reading.faster and not reading.slower
    ]
    kept = _combined(reference, sorted(winners, key=lambda item: item[0]), races)
    for reading, choice in zip(readings, choices, strict=True):
        stays = not kept.plain and kept | choice == kept
        if reading is None:
            reason = _LATE
        elif reading.failure:
            reason = reading.failure
        elif reading.slower or reading.faster:
            reason = "slower" if reading.slower else "faster"
        else:
            reason = "no difference"
        found.choices.append(Finding(str(choice), None, reading, stays, reason))
    found.variant = Variant(reference.off, reference.original, kept)


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
    if everything == best or races.spent() >= _ALL:
        return best
    first, second = (Variant(reference.off, reference.original, choice) for choice in (best, everything))
    (reading,) = _measure(first, [second], races, _ALL)
    return everything if reading is not None and reading.faster and not reading.slower else best
