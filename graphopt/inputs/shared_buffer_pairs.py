"""Pairs of an input and the output that is written over it, as texts, patterns and names."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping

from graphopt.errors import UsageError, unknown

Pair = tuple[str, str]


def parse_pair(text: str) -> Pair:
    """The input and the output in ``past=present``, or their patterns, as in ``past.*=present.*``.

    Raises:
        UsageError: the text is not such a pair.
    """
    source, _, target = text.partition("=")
    if not source or not target or "=" in target:
        raise UsageError(f"{text!r} names no input and output; write past=present")
    _check_pattern(source, target)
    return source, target


def resolve_pairs(pairs: Iterable[Pair], inputs: Collection[str], outputs: Collection[str]) -> dict[str, str]:
    """The input for each output; each ``*`` in an output's pattern represents the match in the input's name.

    Raises:
        UsageError: an item is not a pair; an input or output is unknown, or belongs to two pairs; no input
            matches a pattern; or the numbers of ``*`` in a pair differ.
    """
    if isinstance(pairs, str | Mapping):
        raise UsageError(f"not a list of pairs, such as [('past', 'present')]: {pairs!r}")
    pairs = list(pairs)
    for pair in pairs:
        is_pair = isinstance(pair, tuple | list) and [type(name) for name in pair] == [str, str]
        if not is_pair:
            raise UsageError(f"not a pair of an input and an output, such as ('past', 'present'): {pair!r}")
    found: dict[str, str] = {}
    for source, target in dict.fromkeys(_expand_patterns(pairs, inputs)):
        if source not in inputs:
            several = any(name.startswith(source) for name in inputs)
            hint = f"{source}*={target}* names all pairs" if several else "graphopt inspect lists them"
            raise unknown("input", source, inputs, hint)
        if target not in outputs:
            raise unknown("output", target, outputs, "graphopt inspect lists them")
        for kind, name, known in (("input", source, found.values()), ("output", target, found.keys())):
            if name in known:
                raise UsageError(f"{kind} {name!r} can't share its buffer twice")
        found[target] = source
    return found


def _expand_patterns(pairs: Iterable[Pair], inputs: Iterable[str]) -> Iterator[Pair]:
    """``pairs`` with patterns replaced by the names that match."""
    for source, target in pairs:
        _check_pattern(source, target)
        if "*" not in source:
            yield source, target
            continue
        pattern = re.compile("(.*)".join(map(re.escape, source.split("*"))))
        found = [match for name in inputs if (match := pattern.fullmatch(name)) is not None]
        if not found:
            raise UsageError(f"no input matches {source!r}", hint="graphopt inspect lists the inputs")
        first, *rest = target.split("*")
        for match in found:
            yield match[0], first + "".join(map("".join, zip(match.groups(), rest, strict=True)))


def _check_pattern(source: str, target: str) -> None:
    if source.count("*") != target.count("*"):
        raise UsageError(
            f"{source}={target} needs as many * in the output as in the input, as in past.*=present.*"
        )
