"""Decide which groups of rewrites and which session options are kept.

Decisions depend only on measurements of variants. The effect of a group is the difference between the model
with all rewrites and the model without the rewrites of the group. Groups are screened in few processes,
several at a time. Only groups with an apparent effect are measured again, thoroughly, in fresh processes: a
claim needs two measurements that agree. Then:

- If a group makes the model slower for one of several shapes, the group is reverted, or only the rules at
  fault.
- A group for *speed* is kept only if the model is measured to be faster with it. Groups without a difference
  are also measured together: two may do the same work, or the effect of each may be too small to measure.
- Native kernels that lost their races (:mod:`graphopt.tuning.race_kernels`) are reverted in all variants. The
  winners are confirmed in the model: all of them, none, and each run of convolutions. A run is reverted if
  the model is faster, or seems faster, without it.
- Other rewrites are kept if they make the model smaller and not slower; if they do not make it smaller, they
  must make it faster.
- A newer opset, in which more can be fused, is kept only if the model is faster.
- Without the reverted rules, native groups may consist of other nodes, and have other names. Such groups are
  evaluated in the same way, on the model without the rules. Without a measurement, they are kept if the
  groups that they replace were kept.
- Without a measurement, a group for speed is kept as predicted by costs. The result is then compared with
  the results without such groups, without kernels, and without any measurement; the fastest one is kept.
- The result is compared with the original. If it is slower, the rewrites for speed are reverted, then the
  rewrites without a measurement, then all.
- Session options are tried on the final graph, and are kept only if it is faster with them.

If there is no time for another measurement, no difference is assumed. The last two comparisons are always
made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace

from graphopt.ort.session_options import SessionChoice
from graphopt.tuning.measurements import Finding, Measurement, Measurer, conclusion
from graphopt.tuning.screening import screen
from graphopt.tuning.search_space import Group, Variant
from graphopt.tuning.select_session_options import try_choices
from graphopt.util.lazy_dataclass import dataclass

#: Number of rules of a harmful group that are tried one by one.
_RULES = 4
#: Share of the budget after which no more groups are measured; the rest is for session options.
_SHARE = 0.5
#: The same share, for groups that result from reverting other groups.
_LATER_SHARE = 0.75


@dataclass
class TuningDecision:
    """The result of the search.

    Attributes:
        groups, choices: findings about groups, and about session options and a newer opset.
        final: the measurement of the result against the original, with onnxruntime's default session options.
        fallback: explanation if rewrites were reverted because the result was slower than the original.
    """

    variant: Variant
    groups: list[Finding] = field(default_factory=list)
    choices: list[Finding] = field(default_factory=list)
    final: Measurement | None = None
    fallback: str | None = None


def search(
    groups: Sequence[Group],
    choices: Iterable[SessionChoice],
    measurer: Measurer,
    opset: int | None = None,
    lost: Sequence[Finding] = (),
) -> TuningDecision:
    """Search the best variant.

    Args:
        groups: the groups of rewrites, in the order of measurement.
        opset: a newer opset to try, if any.
        lost: findings about the kernels that lost their races.
    """
    base = Variant(frozenset(owner for finding in lost for owner in finding.reverted))
    found = _groups(groups, measurer, base)
    if any(group.whole for group in groups):
        groups = _settle(found, groups, measurer)
        _confirm_kernels(found, groups, measurer)
    if opset is not None:
        _raise_opset(found, opset, measurer)
    _compare_candidates(found, groups, measurer, base)
    _check_against_original(found, groups, measurer)
    choice, tried = try_choices(found.variant, list(choices), measurer)
    found.choices += tried
    found.variant = replace(found.variant, choice=choice)
    found.groups += lost
    return found


# Groups of rewrites ------------------------------------------------------------------------------


def _groups(groups: Sequence[Group], measurer: Measurer, base: Variant) -> TuningDecision:
    """The decisions about ``groups``, beginning with all of them in ``base``."""
    without = [base.without(group.owners) for group in groups]
    paired = list(zip(without, groups, strict=True))
    careful = frozenset(variant for variant, group in paired if group.speed and not group.raced)
    expected = frozenset(variant for variant, group in paired if group.raced)
    measurements = screen(base, without, measurer, _SHARE, careful, expected)
    measured = list(zip(groups, measurements, strict=True))
    off = {
        group.name: _owners_to_revert(group, measurer, base)
        for group, measurement in measured
        if measurement is not None and measurement.faster
    }
    neutral = {
        group: measurement
        for group, measurement in measured
        if group.name not in off
        and not (measurement.slower if measurement is not None else group.speed)
        and not (group.raced and measurement is not None and measurement.ratio >= 1)
    }
    tried = [group for group, measurement in neutral.items() if measurement is not None and not group.speed]
    idle = _idle(tried, _without(base, off), measurer)
    pool = [group for group in neutral if group.speed or group in idle]
    together = _together(pool, _without(base, off), measurer)
    if together is None or not together.inverse().pays:
        off |= {group.name: group.owners for group in pool}
    findings = [
        _finding(group, measurement, off.get(group.name, ()), together if group in pool else None)
        for group, measurement in measured
    ]
    is_weighed = any(
        group.speed and not group.raced and measurement is None for group, measurement in measured
    )
    return TuningDecision(replace(_without(base, off), weighed=is_weighed), findings)


def _idle(groups: Sequence[Group], current: Variant, measurer: Measurer) -> list[Group]:
    """The groups without effect on speed or size in ``current``."""
    size = measurer.size(current)
    found = [group for group in groups if measurer.size(current.without(group.owners)) <= size]
    if len(found) > 1:  # two groups may do the same work
        all_of_them = (owner for group in found for owner in group.owners)
        return found if measurer.size(current.without(all_of_them)) <= size else []
    return found


def _together(pool: Sequence[Group], reference: Variant, measurer: Measurer) -> Measurement | None:
    """Compare ``reference`` without ``pool``, groups without an individual effect, to ``reference``."""
    if len(pool) < 2:
        return None
    owners = [owner for group in pool for owner in group.owners]
    return screen(reference, [reference.without(owners)], measurer, _SHARE)[0]


def _without(base: Variant, off: Mapping[str, Sequence[str]]) -> Variant:
    return base.without(owner for owners in off.values() for owner in owners)


def _owners_to_revert(group: Group, measurer: Measurer, everything: Variant) -> tuple[str, ...]:
    """The rule to revert in a harmful group, if reverting one rule suffices; otherwise all its rules."""
    if group.whole or len(group.owners) == 1 or measurer.spent() >= _SHARE:
        return group.owners
    rules = group.owners[:_RULES]
    measurements = measurer(
        everything.without(group.owners), [everything.without([rule]) for rule in rules], thorough=True
    )
    harmless = [
        (measurement.ratio, rule)
        for measurement, rule in zip(measurements, rules, strict=True)
        if not measurement.slower and not measurement.suspicious
    ]
    return (min(harmless)[1],) if harmless else group.owners


def _settle(found: TuningDecision, groups: Sequence[Group], measurer: Measurer) -> list[Group]:
    """Evaluate groups of single rewrites that result from reverted rules; returns all current groups."""
    rules = [group for group in groups if not group.whole]
    single = [group for group in groups if group.whole]
    off = found.variant.off - frozenset(owner for group in single for owner in group.owners)
    variant = replace(found.variant, off=off)
    now = measurer.single_rewrite_groups(variant) if variant.off else None
    if now is None:
        return list(groups)
    findings = {finding.name: finding for finding in found.groups}
    earlier = [_earlier(group, single) for group in now]
    fresh = [group for group, known in zip(now, earlier, strict=True) if known is None]
    known = list(dict.fromkeys(group for group in earlier if group is not None))
    for group in known:
        if not findings[group.name].kept:
            variant = variant.without(group.owners)
    others = [variant.without(group.owners) for group in fresh]
    measurements = screen(variant, others, measurer, _LATER_SHARE, frozenset(others))
    replaced = [findings[group.name] for group in single if group not in known]
    found.groups = [finding for finding in found.groups if finding not in replaced]
    trusted = all(finding.kept for finding in replaced)
    for group, measurement in zip(fresh, measurements, strict=True):
        kept = trusted if measurement is None else measurement.inverse().pays
        if not kept:
            variant = variant.without(group.owners)
        found.groups.append(_finding(group, measurement, () if kept else group.owners, None))
    found.variant = variant
    return [*rules, *known, *fresh]


def _earlier(group: Group, groups: Sequence[Group]) -> Group | None:
    """The one of ``groups`` that contains the calls of ``group``."""
    return next(
        (
            other
            for other in groups
            if group.name in (other.functions or (other.name,)) and set(group.owners) <= set(other.owners)
        ),
        None,
    )


def _confirm_kernels(found: TuningDecision, groups: Sequence[Group], measurer: Measurer) -> None:
    """Revert all kernels if the model is faster without them: they may slow down their surroundings."""
    kept = {finding.name for finding in found.groups if finding.kept}
    kernels = [group for group in groups if group.whole and group.name in kept]
    if len(kernels) < 2 or measurer.spent() >= _LATER_SHARE:
        return
    owners = [owner for group in kernels for owner in group.owners]
    without = found.variant.without(owners)
    (measurement,) = measurer(found.variant, [without], thorough=False)
    if not measurement.same and measurement.ratio < 1:
        (measurement,) = measurer(found.variant, [without], thorough=True)
    reverted = measurement.pays
    found.choices.append(
        Finding(
            "all native kernels", None, measurement.inverse(), not reverted, conclusion(measurement.inverse())
        )
    )
    if reverted:
        _give_up(found, kernels)
        found.variant = without


def _raise_opset(found: TuningDecision, opset: int, measurer: Measurer) -> None:
    """Keep the conversion to ``opset`` if it makes the model faster."""
    raised = replace(found.variant, opset=opset)
    measurement = screen(found.variant, [raised], measurer, _SHARE, frozenset({raised}))[0]
    kept = measurement is not None and measurement.pays
    found.choices.append(Finding(f"opset {opset}", None, measurement, kept, conclusion(measurement)))
    if kept:
        found.variant = raised


def _finding(
    group: Group, without: Measurement | None, off: tuple[str, ...], together: Measurement | None
) -> Finding:
    measurement = None if without is None else without.inverse()
    kept = not set(group.owners) <= set(off)
    reason = conclusion(measurement)
    if group.raced:
        reason = f"faster alone; in the model: {reason}"
    if without is not None and without.failure:
        reason = f"the model does not run without: {without.failure}"
    elif without is not None and without.faster and kept:
        reason = f"faster without {', '.join(off)}"
    if not kept and not group.speed and without is not None and not without.faster:
        reason += ", and nothing smaller"
    if together is not None and kept:
        reason += "; faster together with others"
    return Finding(group.name, group.rewrites, measurement, kept, reason, off)


# Other results ------------------------------------------------------------------------------------


def _compare_candidates(
    found: TuningDecision, groups: Sequence[Group], measurer: Measurer, base: Variant
) -> None:
    """If groups for speed were kept without a measurement, keep the fastest result with or without them."""
    unknown = {finding.name for finding in found.groups if finding.measurement is None and finding.kept}
    late = [group for group in groups if group.speed and group.name in unknown]
    if not late:
        return
    owners = [owner for group in late for owner in group.owners]
    kernels = [owner for group in groups if group.whole for owner in group.owners]
    candidates = {
        "without them": found.variant.without(owners),
        "without kernels": found.variant.without(kernels),
        "as predicted": replace(found.variant, off=base.off, weighed=True),
    }
    distinct = {variant: name for name, variant in candidates.items() if variant != found.variant}
    measurements = measurer(found.variant, list(distinct), thorough=True)
    measured = list(zip(distinct, measurements, strict=True))
    faster = [(measurement.ratio, variant) for variant, measurement in measured if measurement.pays]
    best = min(faster, key=lambda item: item[0])[1] if faster else found.variant
    for variant, measurement in measured:
        if not measurement.same:
            name = f"groups not measured: {distinct[variant]}"
            found.choices.append(Finding(name, None, measurement, variant == best, conclusion(measurement)))
    if best != found.variant:
        found.variant = best
        found.groups = [_as_in(best, finding, groups) for finding in found.groups]


def _as_in(variant: Variant, finding: Finding, groups: Sequence[Group]) -> Finding:
    """``finding`` about a group, which is kept if ``variant`` has it."""
    owners = next(group.owners for group in groups if group.name == finding.name)
    kept = not variant.off.issuperset(owners)
    if kept == finding.kept:
        return finding
    return replace(finding, kept=kept, reverted=() if kept else owners)


# The original -------------------------------------------------------------------------------------


def _check_against_original(found: TuningDecision, groups: Sequence[Group], measurer: Measurer) -> None:
    """Compare with the original, and revert more and more rewrites while the result is slower."""
    found.final = _against_original(found.variant, measurer)
    if not found.final.slower:
        return
    cause = "the result was slower than the original"
    if found.final.failure:
        cause = f"the result does not run: {found.final.failure}"
    unknown = {finding.name for finding in found.groups if finding.measurement is None}
    for description, given_up in (
        ("all rewrites for speed", [group for group in groups if group.speed]),
        ("all rewrites for speed, or not measured", [g for g in groups if g.speed or g.name in unknown]),
    ):
        variant = found.variant.without(owner for group in given_up for owner in group.owners)
        variant = replace(variant, opset=None)  # the purpose of a newer opset is also speed
        if variant == found.variant or len(given_up) == len(groups):
            continue
        final = _against_original(variant, measurer)
        _give_up(found, given_up)
        found.variant, found.final = variant, final
        if not final.slower:
            found.fallback = f"{cause}: {description} were reverted"
            return
    found.variant, found.final = Variant(original=True), Measurement(same=True)
    found.fallback = f"{cause}: all rewrites were reverted"
    _give_up(found, groups)


def _against_original(variant: Variant, measurer: Measurer) -> Measurement:
    """The variant against the original; counts as slower if it seems slower in two measurements."""
    (measurement,) = measurer(Variant(original=True), [variant], thorough=True)
    if not measurement.suspicious:
        return measurement
    (again,) = measurer(Variant(original=True), [variant], thorough=True)
    return Measurement(again.ratio, again.band, slower=True) if again.suspicious else again


def _give_up(found: TuningDecision, groups: Sequence[Group]) -> None:
    """Mark ``groups`` as reverted, and a newer opset with them."""
    owners = {group.name: group.owners for group in groups}
    for index, finding in enumerate(found.groups):
        if finding.kept and finding.name in owners:
            reason = f"{finding.reason}; given up"
            found.groups[index] = replace(finding, kept=False, reason=reason, reverted=owners[finding.name])
    found.choices = [
        replace(finding, kept=False, reason=f"{finding.reason}; given up") if finding.kept else finding
        for finding in found.choices
    ]
