"""Statements of a C function, indented by blocks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager


class StatementPrinter:
    """Prints the statements of a function."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.depth = 1

    @contextmanager
    def block(self, header: str = "") -> Iterator[None]:
        """A block of statements."""
        self.line(f"{header} {{" if header else "{")
        self.depth += 1
        yield
        self.depth -= 1
        self.line("}")

    def line(self, text: str) -> None:
        """Add a line."""
        self.lines.append("    " * self.depth + text)


def without_unused(lines: list[str], declaration: re.Pattern[str]) -> list[str]:
    """``lines`` without declarations of variables that no later line uses.

    Args:
        declaration: matches a declaration without side effects; its group is the name of the variable.
    """
    kept: list[str] = []
    used: set[str] = set()
    for line in reversed(lines):
        declared = declaration.match(line)
        if declared is None or declared[1] in used:
            kept.append(line)
            used.update(re.findall(r"\w+", line))
            if declared is not None:  # earlier lines use other variables of this name
                used.discard(declared[1])
    return kept[::-1]
