"""Which specializations a profile calls for, under a fusion strategy."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from graphopt import ir
from graphopt.profile.assumptions import Guard
from graphopt.profile.profile import Pattern, Profile
from graphopt.profile.strategy import Behaviour, FusionStrategy
from graphopt.profile.value_profile import ANY, Dim, Seen


@dataclass(frozen=True)
class Variant:
    """A specialization that is called for.

    Attributes:
        name: such as ``static-1``.
        behaviour: how closely it keeps to what was seen.
        guard: what it assumes.
        runs: how many runs of the profile it serves that none before it does.
    """

    name: str
    behaviour: Behaviour
    guard: Guard
    runs: int


def variants_of(
    profile: Profile,
    strategy: FusionStrategy | None = None,
    *,
    most: int | None = None,
    limits: Mapping[Behaviour, int] | None = None,
    optional: Iterable[str] = (),
    pinned: Collection[str] = (),
) -> list[Variant]:
    """The specializations for the runs of ``profile``, the most frequent patterns first.

    They are what the profiling executor would make if the patterns came in this order: each that no
    guard before lets through is specialized for, in the way of the next step of ``strategy``. Other than
    there, what all runs had in common is known, so that a dim that never varied stays a size in dynamic
    specializations too.

    Args:
        most: make no more than that.
        limits: make no more than that of a behaviour; what would come next is passed over.
        optional: inputs with a default, of which it is assumed that they are not fed where they were not.
        pinned: inputs whose contents static specializations fix even if they were fed only once.
    """
    strategy = strategy or FusionStrategy()
    waiting = sorted(
        (pattern for pattern in profile.patterns if _has_elements(pattern)), key=lambda p: -p.count
    )
    found: list[Variant] = []
    made: dict[Behaviour, int] = {}
    remaining = strategy.depth
    while waiting and remaining > 0 and (most is None or len(found) < most):
        behaviour = strategy.behaviour(remaining)
        remaining -= 1
        if limits is not None and behaviour in limits and made.get(behaviour, 0) >= limits[behaviour]:
            continue
        first = waiting[0]
        like_first = [first] if behaviour is Behaviour.STATIC else _alike(first, waiting)
        guard = guard_for(
            like_first,
            behaviour,
            profile,
            steady=_steady(_alike(first, profile.patterns)),
            absent=tuple(name for name in optional if name not in first.inputs),
            pinned=pinned,
        )
        if not guard.admits(first.inputs):  # somebody wrote other contents into the profile
            guard = guard.without_contents()
        served = [pattern for pattern in waiting if guard.admits(pattern.inputs)]
        waiting = [pattern for pattern in waiting if not guard.admits(pattern.inputs)]
        made[behaviour] = made.get(behaviour, 0) + 1
        name = f"{behaviour.value}-{made[behaviour]}"
        found.append(Variant(name, behaviour, guard, sum(pattern.count for pattern in served)))
    return found


def _has_elements(pattern: Pattern) -> bool:
    """Whether no dim is 0: such runs compute nothing, and are not worth a specialization."""
    return not any(dim == 0 for seen in pattern.inputs.values() for dim in seen.shape or ())


def guard_for(
    patterns: Sequence[Pattern],
    behaviour: Behaviour,
    profile: Profile,
    *,
    steady: Collection[tuple[str, int]] | None = None,
    absent: tuple[str, ...] = (),
    pinned: Collection[str] = (),
) -> Guard:
    """What one specialization for the runs of ``patterns`` assumes.

    A dim that varied among them is a symbol in any case. Where the behaviour is dynamic, so is every other
    dim that is not steady. Dims that are equal in each pattern share a symbol. Contents are assumed where
    no size varies, and they were fed more than once and never otherwise.

    Args:
        profile: all that was seen.
        steady: dims, by input and axis, that keep their size in any case; by default those of size 1.
        absent: inputs with a default that are not fed.
        pinned: inputs whose contents a static specialization fixes even if they were fed only once.
    """
    symbols: dict[tuple[Dim, ...], str] = {}

    def general(name: str, axis: int) -> Dim:
        sizes = _sizes(patterns, name, axis)
        if any(size in ir.ANONYMOUS_DIMS for size in sizes):
            return ANY
        keeps = sizes[0] == 1 if steady is None else (name, axis) in steady
        if len(set(sizes)) == 1 and (keeps or behaviour is Behaviour.STATIC):
            return sizes[0]
        return symbols.setdefault(sizes, f"s{len(symbols)}")

    inputs = {}
    for name in dict.fromkeys(name for pattern in patterns for name in pattern.inputs):
        told = [pattern.inputs[name] for pattern in patterns if name in pattern.inputs]
        always = len(told) == len(patterns)
        ranks = {None if seen.shape is None else len(seen.shape) for seen in told}
        rank = ranks.pop() if always and len(ranks) == 1 else None
        types = {seen.type for seen in told}
        seen = Seen(
            types.pop() if len(types) == 1 else "",
            None if rank is None else tuple(general(name, axis) for axis in range(rank)),
            always=always,
        )
        fewest = 1 if name in pinned and behaviour is Behaviour.STATIC else 2
        inputs[name] = replace(seen, ints=_contents(name, seen, patterns, behaviour, profile, fewest))
    return Guard(inputs, absent)


def _contents(
    name: str,
    seen: Seen,
    patterns: Sequence[Pattern],
    behaviour: Behaviour,
    profile: Profile,
    fewest: int,
) -> tuple[int, ...] | None:
    """Contents of an input that were fed in at least ``fewest`` runs, and never otherwise."""
    common = profile.values.get(name)
    if not seen.is_static:
        return None
    never_otherwise = common is not None and common.ints is not None and common.shape == seen.shape
    if common is not None and never_otherwise and _feeds(profile.patterns, name) >= fewest:
        return common.ints
    if behaviour is Behaviour.DYNAMIC or _feeds(patterns, name) < fewest:
        return None
    contents = {pattern.inputs[name].ints for pattern in patterns}
    return contents.pop() if len(contents) == 1 else None


def _feeds(patterns: Iterable[Pattern], name: str) -> int:
    """How many runs fed an input."""
    return sum(pattern.count for pattern in patterns if name in pattern.inputs)


def _sizes(patterns: Iterable[Pattern], name: str, axis: int) -> tuple[Dim, ...]:
    return tuple((pattern.inputs[name].shape or ())[axis] for pattern in patterns)


def _steady(alike: Sequence[Pattern]) -> frozenset[tuple[str, int]]:
    """The dims that never varied; of a single pattern those of size 1, since the others may yet vary."""
    places = [(name, axis) for name, seen in alike[0].inputs.items() for axis in range(len(seen.shape or ()))]
    sizes = {place: set(_sizes(alike, *place)) for place in places}
    return frozenset(
        place for place in places if len(sizes[place]) == 1 and (len(alike) > 1 or 1 in sizes[place])
    )


def _alike(pattern: Pattern, patterns: Iterable[Pattern]) -> list[Pattern]:
    """Those of ``patterns`` that differ from ``pattern`` in nothing but sizes and contents."""
    return [other for other in patterns if _ranks(other) == _ranks(pattern)]


def _ranks(pattern: Pattern) -> tuple[tuple[str, str, int | None], ...]:
    return tuple(
        (name, seen.type, None if seen.shape is None else len(seen.shape))
        for name, seen in sorted(pattern.inputs.items())
    )


def assumed(profile: Profile, behaviour: Behaviour, pinned: Collection[str] = ()) -> Guard:
    """The guard of one specialization for all runs of ``profile``, merged as the seed does.

    ``pinned`` is that of :func:`guard_for`.
    """
    return guard_for(profile.patterns, behaviour, profile, pinned=pinned)
