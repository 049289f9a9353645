"""Profiles as tables."""

from __future__ import annotations

from collections.abc import Sequence

from graphopt.cli.output.console import Console
from graphopt.ir.signature import notation
from graphopt.profile import Profile, ValueProfile
from graphopt.util.text_tables import Table, counted, shortened

#: Number of patterns, and of inner values, listed without -v.
_LISTED = 10
#: Number of elements of one tensor listed without -v.
_NUMBERS = 6


def print_profile(console: Console, profile: Profile, inputs: Sequence[str], *, verbose: bool) -> None:
    """Print the patterns, most frequent first, and the properties that all runs share.

    Args:
        inputs: the names of all inputs of the model; the other values are inner values.
    """
    limit = None if verbose else _LISTED
    patterns = sorted(profile.patterns, key=lambda pattern: -pattern.count)
    console.print(f"  {counted(profile.runs, 'run')}, {counted(len(patterns), 'pattern')}")
    table = Table(["pattern", "runs", "input", "type", "contents"], "<><<<")
    for number, pattern in enumerate(patterns[:limit], 1):
        first: tuple[object, object] = number, f"{pattern.count:,}"
        for name, seen in pattern.inputs.items():
            table.add(*first, name, _type(seen), _numbers(seen))
            first = "", ""
        if not pattern.inputs:
            table.add(*first, "no inputs")
    console.table(table)
    _tell_more(console, len(patterns), limit, "pattern")
    console.print()
    table = Table(["input", "type", "in all runs"], "<<<")
    for name in inputs:
        found = profile.values.get(name)
        said = _said(found, profile.requires_grad.get(name))
        table.add(name, _type(found) if found else "", said)
    console.table(table)
    inner = [(name, seen) for name, seen in profile.values.items() if name not in inputs]
    if not inner:
        return
    console.print()
    table = Table(["inner value", "type", "in all runs"], "<<<")
    for name, seen in inner[:limit]:
        table.add(name, _type(seen), _said(seen, None))
    console.table(table)
    _tell_more(console, len(inner), limit, "inner value")


def _tell_more(console: Console, count: int, limit: int | None, what: str) -> None:
    if limit is not None and count > limit:
        console.print(f"  and {counted(count - limit, what)} more (-v lists all)")


def _said(seen: ValueProfile | None, gradient: bool | None) -> str:
    """Further facts about a value."""
    words = []
    if seen is None:
        words.append("not fed")
    elif not seen.always:
        words.append("absent in some")
    if seen is not None and seen.ints is not None:
        words.append(f"always {_numbers(seen)}")
    if gradient is not None:
        words.append("requires a gradient" if gradient else "requires no gradient")
    return ", ".join(words)


def _type(seen: ValueProfile) -> str:
    return notation(seen.type, seen.shape)


def _numbers(seen: ValueProfile) -> str:
    return "" if seen.ints is None else shortened(map(str, seen.ints), _NUMBERS)
