"""Which specializations a profile calls for, under a fusion strategy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from graphopt.profile.guards import Guard
from graphopt.profile.profile import Pattern, Profile
from graphopt.profile.seen import Dim, Seen
from graphopt.profile.strategy import Behaviour, FusionStrategy


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
        if limits is not None and made.get(behaviour, 0) >= limits.get(behaviour, remaining + 1):
            continue
        first = waiting[0]
        if behaviour is Behaviour.STATIC:
            inputs = _exact(first, profile)
        else:
            inputs = _general(first, waiting, profile)
        absent = tuple(name for name in optional if name not in inputs)
        guard = Guard(inputs, absent)
        if not guard.admits(first.inputs):  # somebody wrote other contents into the profile
            guard = Guard({name: replace(seen, ints=None) for name, seen in inputs.items()}, absent)
        served = [pattern for pattern in waiting if guard.admits(pattern.inputs)]
        waiting = [pattern for pattern in waiting if not guard.admits(pattern.inputs)]
        made[behaviour] = made.get(behaviour, 0) + 1
        name = f"{behaviour.value}-{made[behaviour]}"
        found.append(Variant(name, behaviour, guard, sum(pattern.count for pattern in served)))
    return found


def _has_elements(pattern: Pattern) -> bool:
    """Whether no dim is 0: such runs compute nothing, and are not worth a specialization."""
    return not any(dim == 0 for seen in pattern.inputs.values() for dim in seen.shape or ())


def _exact(pattern: Pattern, profile: Profile) -> dict[str, Seen]:
    """Sizes as in ``pattern``, and contents that were always the same."""
    return {
        name: Seen(seen.type, seen.shape, _pinned(name, pattern, profile))
        for name, seen in pattern.inputs.items()
    }


def _pinned(name: str, pattern: Pattern, profile: Profile) -> tuple[int, ...] | None:
    """Contents of an input that were seen more than once, and never otherwise."""
    seen, common = pattern.inputs[name], profile.values.get(name)
    if common is not None and common.ints is not None and profile.runs > 1:
        return common.ints
    return seen.ints if pattern.count > 1 else None


def _general(first: Pattern, waiting: Sequence[Pattern], profile: Profile) -> dict[str, Seen]:
    """Sizes that varied become symbols; dims that were equal in all that wait share one.

    Of a single pattern, each dim but those of size 1 is taken for one that varies, as in the seed.
    """
    alike = [pattern for pattern in profile.patterns if _ranks(pattern) == _ranks(first)]
    served = [pattern for pattern in waiting if _ranks(pattern) == _ranks(first)]
    symbols: dict[tuple[Dim, ...], str] = {}

    def general(name: str, axis: int) -> Dim:
        sizes = _sizes(served, name, axis)
        everywhere = _sizes(alike, name, axis)
        same = len(set(everywhere)) == 1
        if same and (len(alike) > 1 or sizes[0] == 1):
            return sizes[0]
        return symbols.setdefault(sizes, f"s{len(symbols)}")

    inputs = {}
    for name, seen in first.inputs.items():
        shape = None if seen.shape is None else tuple(general(name, axis) for axis in range(len(seen.shape)))
        common = profile.values.get(name)
        ints = common.ints if common is not None and profile.runs > 1 else None
        inputs[name] = Seen(seen.type, shape, ints)
    return inputs


def _sizes(patterns: Iterable[Pattern], name: str, axis: int) -> tuple[Dim, ...]:
    return tuple((pattern.inputs[name].shape or ())[axis] for pattern in patterns)


def _ranks(pattern: Pattern) -> tuple[tuple[str, str, int | None], ...]:
    return tuple(
        (name, seen.type, None if seen.shape is None else len(seen.shape))
        for name, seen in sorted(pattern.inputs.items())
    )


def assumed(profile: Profile, behaviour: Behaviour) -> Guard:
    """What one specialization for all runs of ``profile`` assumes, as the seed merges what it saw.

    A dim that varied is a symbol in any case. Where the behaviour is dynamic, so is every other dim but those
    of size 1, and equal sizes share a symbol.
    """

    def general(dim: Dim) -> Dim:
        return f"n{dim}" if isinstance(dim, int) and dim != 1 else dim

    inputs = {}
    for name in dict.fromkeys(name for pattern in profile.patterns for name in pattern.inputs):
        seen = profile.values[name]
        shape = seen.shape if seen.always else None
        if shape is not None and behaviour is Behaviour.DYNAMIC:
            shape = tuple(map(general, shape))
        ints = seen.ints if profile.runs > 1 and Seen(seen.type, shape).is_static else None
        inputs[name] = Seen(seen.type, shape, ints, seen.always)
    return Guard(inputs)
