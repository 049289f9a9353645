"""Adjust sizes until the constraints between them hold."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import permutations

from graphopt.analysis.symbolic import number, symbols
from graphopt.inputs.dim_bindings import Binding
from graphopt.inputs.size_constraint import SizeConstraint

#: Maximum size in the search.
LARGEST = 1 << 12
#: Number of changes after which the search gives up.
_CHANGES = 48
#: Maximum change of a size when two sizes are changed together.
_STEPS = 33

#: Smallest and largest size; ``None`` for no upper bound.
Range = tuple[int, int | None]


def solve(
    binding: Binding, rules: Iterable[SizeConstraint], ranges: Mapping[str, Range], late: Collection[str] = ()
) -> dict[str, int]:
    """``binding`` with few and small changes of sizes, so that ``rules`` hold.

    A greedy search: for the first violated constraint, the size of one of its symbols, preferably an
    unchanged one, changes to the nearest size that satisfies the constraint; or two symbols change together.
    Constraints that can't be satisfied are skipped.

    Args:
        binding: initial sizes; sizes of 0 are unchanged.
        rules: constraints; a constraint with other symbols is ignored.
        ranges: ranges of the sizes.
        late: symbols that are changed only as a last resort.
    """
    sizes = dict(binding)
    known = [rule for rule in rules if _names(rule) and sizes.keys() >= _names(rule).keys()]
    moved: set[str] = set()
    unsatisfied: set[SizeConstraint] = set()
    for _ in range(_CHANGES):
        broken = next((rule for rule in known if rule not in unsatisfied and not _holds(rule, sizes)), None)
        if broken is None:
            break
        found = [
            ((name in moved, name in late, abs(size - sizes[name])), name, size)
            for name in _names(broken)
            if sizes[name]
            and (size := _nearest(broken, name, sizes, ranges.get(name, (1, None)))) is not None
        ]
        if found:
            _, name, size = min(found, key=lambda entry: entry[0])
            changes = {name: size}
        else:
            changes = _two_changes(broken, sizes, ranges, late)
        if not changes:
            unsatisfied.add(broken)
        sizes |= changes
        moved |= changes.keys()
    return sizes


def _names(rule: SizeConstraint) -> dict[str, object]:
    return {**symbols(rule.left), **symbols(rule.right)}


def _holds(rule: SizeConstraint, sizes: Mapping[str, int]) -> bool:
    try:
        return rule.holds(number(rule.left, sizes), number(rule.right, sizes))
    except ZeroDivisionError:
        return False


def _nearest(rule: SizeConstraint, name: str, sizes: Mapping[str, int], range_: Range) -> int | None:
    """The size of ``name`` nearest to its current one for which ``rule`` holds."""
    trial = dict(sizes)
    for size in _by_distance(sizes[name], range_):
        trial[name] = size
        if _holds(rule, trial):
            return size
    return None


def _two_changes(
    rule: SizeConstraint, sizes: Mapping[str, int], ranges: Mapping[str, Range], late: Collection[str]
) -> dict[str, int]:
    """Nearby sizes of two symbols, such as factors of a product, that satisfy ``rule``; empty if none do."""
    names = [name for name in _names(rule) if sizes[name] and name not in late]
    for step in range(1, _STEPS):
        for one, other in permutations(names, 2):
            first, last = ranges.get(one, (1, None))
            for size in (sizes[one] + step, sizes[one] - step):
                if max(first, 1) <= size <= (LARGEST if last is None else last):
                    trial = {**sizes, one: size}
                    found = _between(rule, other, trial, ranges.get(other, (1, None)))
                    if found is not None:
                        return {one: size, other: found}
    return {}


def _between(rule: SizeConstraint, name: str, sizes: Mapping[str, int], range_: Range) -> int | None:
    """The size of ``name`` for which ``rule`` holds, if the difference of its sides is monotonic in it."""

    def difference_at(size: int) -> int:
        trial = {**sizes, name: size}
        return number(rule.left, trial) - number(rule.right, trial)

    low, high = range_[0] or 1, LARGEST if range_[1] is None else range_[1]
    try:
        rising = difference_at(high) > difference_at(low)
        while low < high:
            middle = (low + high) // 2
            difference = difference_at(middle)
            if difference >= 0 if rising else difference <= 0:
                high = middle
            else:
                low = middle + 1
        return low if _holds(rule, {**sizes, name: low}) else None
    except ZeroDivisionError:
        return None


def _by_distance(size: int, range_: Range) -> Iterator[int]:
    """The sizes around ``size`` within ``range_``, nearest first, the larger before the smaller."""
    first, last = range_[0] or 1, min(LARGEST if range_[1] is None else range_[1], LARGEST)
    for step in range(1, LARGEST):
        if size + step <= last:
            yield size + step
        if size - step >= first:
            yield size - step
