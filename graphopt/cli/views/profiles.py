"""Profiles as tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from graphopt.ir.signature import notation
from graphopt.profile import Profile, ValueProfile
from graphopt.util.text_tables import Block, Table, counted, shortened

#: Number of patterns, and of inner values, listed without -v.
_LISTED = 10
#: Number of elements of one tensor listed without -v.
_NUMBERS = 6


def profile_blocks(profile: Profile, inputs: Sequence[str], verbose: int) -> Iterator[Block]:
    """The patterns, most frequent first, and the properties that all runs share.

    Args:
        inputs: the names of all inputs of the model; the other values are inner values.
    """
    limit = None if verbose else _LISTED
    patterns = sorted(profile.patterns, key=lambda pattern: -pattern.count)
    yield f"  {counted(profile.runs, 'run')}, {counted(len(patterns), 'pattern')}"
    table = Table(["pattern", "runs", "input", "type", "contents"], "<><<<")
    for number, pattern in enumerate(patterns[:limit], 1):
        first: tuple[object, object] = number, f"{pattern.count:,}"
        for name, value in pattern.inputs.items():
            table.add(*first, name, _type(value), _numbers(value))
            first = "", ""
        if not pattern.inputs:
            table.add(*first, "no inputs")
    yield table
    yield from _omitted(len(patterns), limit, "pattern")
    yield ""
    table = Table(["input", "type", "in all runs"], "<<<")
    for name in inputs:
        found = profile.values.get(name)
        remarks = _remarks(found, profile.requires_grad.get(name))
        table.add(name, _type(found) if found else "", remarks)
    yield table
    inner = [(name, value) for name, value in profile.values.items() if name not in inputs]
    if profile.left_out:
        yield f"  {counted(profile.left_out, 'inner value')} not watched, {profile.watched:,} watched"
    yield from _zero_gradients(profile)
    if not inner:
        return
    yield ""
    table = Table(["inner value", "type", "in all runs"], "<<<")
    for name, value in inner[:limit]:
        table.add(name, _type(value), _remarks(value, None))
    yield table
    yield from _omitted(len(inner), limit, "inner value")


def _zero_gradients(profile: Profile) -> Iterator[str]:
    zero = [name for name, is_zero in profile.zero_gradients.items() if is_zero]
    if zero:
        yield f"  zero in all runs: the gradients {', '.join(zero)}"


def _omitted(count: int, limit: int | None, noun: str) -> Iterator[str]:
    if limit is not None and count > limit:
        yield f"  and {counted(count - limit, noun)} more (-v lists all)"


def _remarks(value: ValueProfile | None, gradient: bool | None) -> str:
    """Further properties of a value."""
    words = []
    if value is None:
        words.append("not fed")
    elif not value.always:
        words.append("absent in some")
    if value is not None and value.ints is not None:
        words.append(f"always {_numbers(value)}")
    if gradient is not None:
        words.append("requires a gradient" if gradient else "requires no gradient")
    return ", ".join(words)


def _type(value: ValueProfile) -> str:
    return notation(value.type, value.shape)


def _numbers(value: ValueProfile) -> str:
    return "" if value.ints is None else shortened(map(str, value.ints), _NUMBERS)
