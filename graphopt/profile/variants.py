"""Derive the variants to create from a profile and a fusion strategy."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from graphopt import ir
from graphopt.profile.fusion_strategy import FusionStrategy, SpecializationKind
from graphopt.profile.guard import Guard
from graphopt.profile.profile import Pattern, Profile
from graphopt.profile.value_profile import ANY, Dim, ValueProfile
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class Variant:
    """A specialization to create.

    Attributes:
        name: its name, such as ``static-1``.
        kind: the treatment of the sizes of dims.
        guard: its assumptions.
        runs: the number of profiled runs that satisfy its guard and no earlier guard.
    """

    name: str
    kind: SpecializationKind
    guard: Guard
    runs: int


def variants_of(
    profile: Profile,
    strategy: FusionStrategy | None = None,
    *,
    most: int | None = None,
    limits: Mapping[SpecializationKind, int] | None = None,
    optional: Iterable[str] = (),
    pinned: Collection[str] = (),
) -> list[Variant]:
    """The variants for the runs of ``profile``, most frequent patterns first.

    The result is as if the executor received the patterns in this order: each pattern that no earlier guard
    admits has a variant, whose kind is that of the next step of ``strategy``. In contrast to the executor,
    all runs are known in advance, so a dim that never varied also keeps its size in dynamic variants.

    Args:
        most: the maximum number of variants.
        limits: the maximum number of variants by kind; steps beyond it are skipped.
        optional: inputs with a default; a guard assumes their absence where they were not fed.
        pinned: inputs whose contents static variants fix even if they were fed in a single run.
    """
    strategy = strategy or FusionStrategy()
    waiting = sorted(
        (pattern for pattern in profile.patterns if _has_elements(pattern)), key=lambda p: -p.count
    )
    found: list[Variant] = []
    made: dict[SpecializationKind, int] = {}
    remaining = strategy.depth
    while waiting and remaining > 0 and (most is None or len(found) < most):
        kind = strategy.kind(remaining)
        remaining -= 1
        if limits is not None and kind in limits and made.get(kind, 0) >= limits[kind]:
            continue
        first = waiting[0]
        like_first = [first] if kind is SpecializationKind.STATIC else _alike(first, waiting)
        guard = guard_for(
            like_first,
            kind,
            profile,
            steady=_steady(_alike(first, profile.patterns)),
            absent=tuple(name for name in optional if name not in first.inputs),
            pinned=pinned,
        )
        if not guard.admits(first.inputs):  # the profile was edited, and its contents are inconsistent
            guard = guard.without_contents()
        served = [pattern for pattern in waiting if guard.admits(pattern.inputs)]
        waiting = [pattern for pattern in waiting if not guard.admits(pattern.inputs)]
        made[kind] = made.get(kind, 0) + 1
        name = f"{kind.value}-{made[kind]}"
        found.append(Variant(name, kind, guard, sum(pattern.count for pattern in served)))
    return found


def _has_elements(pattern: Pattern) -> bool:
    """Whether no dim is 0; empty inputs are not worth a specialization."""
    return not any(dim == 0 for observed in pattern.inputs.values() for dim in observed.shape or ())


def guard_for(
    patterns: Sequence[Pattern],
    kind: SpecializationKind,
    profile: Profile,
    *,
    steady: Collection[tuple[str, int]] | None = None,
    absent: tuple[str, ...] = (),
    pinned: Collection[str] = (),
) -> Guard:
    """The guard of one specialization for the runs of ``patterns``.

    Dims that varied among the patterns become symbols; with a dynamic kind, all dims that are not ``steady``
    become symbols. Dims that are equal in each pattern share a symbol. Contents are fixed if the shape is
    static, and at least two runs fed the input, all with the same contents.

    Args:
        profile: the profile of all runs.
        steady: dims, by input and axis, that keep their size in any case; by default those of size 1.
        absent: inputs with a default that are not fed.
        pinned: inputs whose contents a static specialization fixes even if they were fed in a single run.
    """
    symbols: dict[tuple[Dim, ...], str] = {}

    def general(name: str, axis: int) -> Dim:
        sizes = _sizes(patterns, name, axis)
        if any(size in ir.ANONYMOUS_DIMS for size in sizes):
            return ANY
        keeps = sizes[0] == 1 if steady is None else (name, axis) in steady
        if len(set(sizes)) == 1 and (keeps or kind is SpecializationKind.STATIC):
            return sizes[0]
        return symbols.setdefault(sizes, f"s{len(symbols)}")

    inputs = {}
    for name in dict.fromkeys(name for pattern in patterns for name in pattern.inputs):
        profiles = [pattern.inputs[name] for pattern in patterns if name in pattern.inputs]
        always = len(profiles) == len(patterns)
        ranks = {None if observed.shape is None else len(observed.shape) for observed in profiles}
        rank = ranks.pop() if always and len(ranks) == 1 else None
        types = {observed.type for observed in profiles}
        expected = ValueProfile(
            types.pop() if len(types) == 1 else "",
            None if rank is None else tuple(general(name, axis) for axis in range(rank)),
            always=always,
        )
        fewest = 1 if name in pinned and kind is SpecializationKind.STATIC else 2
        inputs[name] = replace(expected, ints=_contents(name, expected, patterns, kind, profile, fewest))
    return Guard(inputs, absent)


def _contents(
    name: str,
    expected: ValueProfile,
    patterns: Sequence[Pattern],
    kind: SpecializationKind,
    profile: Profile,
    fewest: int,
) -> tuple[int, ...] | None:
    """The contents of an input, if at least ``fewest`` runs fed it and all of them fed the same contents."""
    common = profile.values.get(name)
    if not expected.is_static:
        return None
    never_otherwise = common is not None and common.ints is not None and common.shape == expected.shape
    if common is not None and never_otherwise and _feeds(profile.patterns, name) >= fewest:
        return common.ints
    if kind is SpecializationKind.DYNAMIC or _feeds(patterns, name) < fewest:
        return None
    contents = {pattern.inputs[name].ints for pattern in patterns}
    return contents.pop() if len(contents) == 1 else None


def _feeds(patterns: Iterable[Pattern], name: str) -> int:
    """The number of runs that fed an input."""
    return sum(pattern.count for pattern in patterns if name in pattern.inputs)


def _sizes(patterns: Iterable[Pattern], name: str, axis: int) -> tuple[Dim, ...]:
    return tuple((pattern.inputs[name].shape or ())[axis] for pattern in patterns)


def _steady(alike: Sequence[Pattern]) -> frozenset[tuple[str, int]]:
    """The dims that never varied; for one pattern, only dims of size 1, because others may vary later."""
    places = [
        (name, axis)
        for name, observed in alike[0].inputs.items()
        for axis in range(len(observed.shape or ()))
    ]
    sizes = {place: set(_sizes(alike, *place)) for place in places}
    return frozenset(
        place for place in places if len(sizes[place]) == 1 and (len(alike) > 1 or 1 in sizes[place])
    )


def _alike(pattern: Pattern, patterns: Iterable[Pattern]) -> list[Pattern]:
    """The ``patterns`` that differ from ``pattern`` in sizes and contents only."""
    return [other for other in patterns if _ranks(other) == _ranks(pattern)]


def _ranks(pattern: Pattern) -> tuple[tuple[str, str, int | None], ...]:
    return tuple(
        (name, observed.type, None if observed.shape is None else len(observed.shape))
        for name, observed in sorted(pattern.inputs.items())
    )


def guard_for_all(profile: Profile, kind: SpecializationKind, pinned: Collection[str] = ()) -> Guard:
    """The guard of one specialization for all runs of ``profile``; ``pinned`` as in :func:`guard_for`."""
    return guard_for(profile.patterns, kind, profile, pinned=pinned)
