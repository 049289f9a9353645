"""The syntax of pipeline text: ``name{key=value,flag},fixpoint(name,…)``."""

from __future__ import annotations

import re

from graphopt.errors import UsageError
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class Item:
    """One name with its options and, for ``fixpoint``, the items in its parentheses."""

    name: str
    options: tuple[tuple[str, str], ...] = ()
    children: tuple[Item, ...] = ()


_TOKEN = re.compile(r"\s*([A-Za-z0-9_.:-]+|[{}(),])")
_OPTIONS = re.compile(r"\{([^{}]*)\}")


def parse_items(text: str) -> tuple[Item, ...]:
    """Parse pipeline text.

    Raises:
        UsageError: the text is malformed; the message shows the position.
    """
    items, end = _sequence(text, 0, depth=0)
    if end != len(text):
        fault = "unbalanced ')'" if text[end] == ")" else "a comma is expected"
        raise _error(text, end, fault)
    return items


def _sequence(text: str, at: int, depth: int) -> tuple[tuple[Item, ...], int]:
    if depth > 16:
        raise _error(text, at, "nested too deeply")
    items: list[Item] = []
    while True:
        match = _TOKEN.match(text, at)
        if match is None or not (match[1][0].isalnum() or match[1][0] == "_"):
            if not items and text[at:].strip() == "":
                return (), len(text)
            raise _error(text, at, "a name is expected")
        name, at = match[1], match.end()
        options: tuple[tuple[str, str], ...] = ()
        children: tuple[Item, ...] = ()
        if text[at : at + 1] == "{":
            braces = _OPTIONS.match(text, at)
            if braces is None:
                raise _error(text, at, "'{' is not closed")
            options, at = tuple(_option(part) for part in braces[1].split(",") if part.strip()), braces.end()
        if text[at : at + 1] == "(":
            children, at = _sequence(text, at + 1, depth + 1)
            if text[at : at + 1] != ")":
                raise _error(
                    text, at, "'(' is not closed" if at >= len(text) else "a comma or ')' is expected"
                )
            at += 1
        items.append(Item(name, options, children))
        while text[at : at + 1].isspace():
            at += 1
        if text[at : at + 1] != ",":
            return tuple(items), at
        at += 1


def _option(part: str) -> tuple[str, str]:
    key, separator, value = part.partition("=")
    return key.strip().replace("-", "_"), value.strip() if separator else "true"


def _error(text: str, at: int, fault: str) -> UsageError:
    file = "/" in re.split(r"[\s,{}()]", text[at:], maxsplit=1)[0]
    hint = "name your own passes as module:Class, not by file" if file else None
    return UsageError(f"pipeline text: {fault} at column {at + 1}: {text[:at]}⟨here⟩{text[at:]}", hint=hint)
