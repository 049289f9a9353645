"""Plain tables and numbers for people to read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from typing import Literal, Self, TypeAlias
from unicodedata import combining, east_asian_width

from graphopt.util.lazy_dataclass import dataclass

#: Colours and other attributes of text on a terminal, which have no width.
_STYLE = re.compile(r"\x1b\[[0-9;]*m")

#: The role of a line in a report; terminals show each role in a different colour.
Tone = Literal["plain", "title", "good", "bad", "caution", "hint"]


class Line(str):
    """A line of a report with a tone."""

    tone: Tone

    def __new__(cls, text: str, tone: Tone = "plain") -> Self:
        """A line of ``text``."""
        line = super().__new__(cls, text)
        line.tone = tone
        return line


#: Parts of a report for people: lines, and tables, whose layout depends on the terminal's width.
Block: TypeAlias = "str | Table"


@dataclass
class Table:
    """Rows of text under headings.

    Attributes:
        columns: headings; if all are empty, there is no heading line.
        align: for each column ``<`` or ``>``.
        rows: the rows; a row may be shorter than the headings.
    """

    columns: Sequence[str]
    align: str
    rows: list[Sequence[str]] = field(default_factory=list)

    def add(self, *cells: object) -> None:
        """Append a row; line breaks and other unprintable characters of cells are escaped."""
        self.rows.append([escaped(str(cell)) for cell in cells])

    def lines(self, indent: str = "") -> list[str]:
        """The table as aligned text."""
        everything = [self.columns, *self.rows] if any(self.columns) else list(self.rows)
        widths = self._widths()
        return [(indent + self._line(row, widths)).rstrip() for row in everything]

    def _widths(self) -> list[int]:
        widths = [0] * len(self.columns)
        for row in [self.columns, *self.rows]:
            for index, cell in enumerate(row):
                widths[index] = max(widths[index], text_width(cell))
        return widths

    def _line(self, row: Sequence[str], widths: Sequence[int]) -> str:
        return "  ".join(
            pad(cell, width, align) for cell, width, align in zip(row, widths, self.align, strict=False)
        )

    def __str__(self) -> str:
        return "\n".join(self.lines())


def flat(blocks: Iterable[Block], indent: str = "") -> Iterator[str]:
    """All lines of ``blocks``, at full width."""
    for block in blocks:
        yield from block.lines(indent) if isinstance(block, Table) else [block]


def pad(cell: str, width: int, align: str = "<") -> str:
    """``cell``, padded with spaces to ``width`` columns of a terminal."""
    space = " " * max(0, width - text_width(cell))
    return space + cell if align == ">" else cell + space


def text_width(text: str) -> int:
    """Width of ``text`` in columns of a terminal, without its styles."""
    if "\x1b" in text:
        text = _STYLE.sub("", text)
    if text.isascii():
        return len(text)
    return sum(0 if combining(char) else 2 if east_asian_width(char) in "WF" else 1 for char in text)


def escaped(text: str) -> str:
    r"""``text`` with line breaks and other unprintable characters escaped.

    >>> print(escaped("a\nb"))
    a\nb
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def human_bytes(number: int) -> str:
    """``82.4 MB``: three significant digits, powers of 1000, as in file managers."""
    return f"{number} B" if number < 1000 else f"{_scaled(number)}B"


def human_count(number: int) -> str:
    """``21.1 M``; small numbers in full: ``1,801``."""
    return f"{number:,}" if number < 100_000 else _scaled(number)


def _scaled(number: float) -> str:
    units = iter("kMGTPE")
    unit = next(units)
    number /= 1000
    while number >= 999.5:
        unit = next(units)
        number /= 1000
    digits = 2 if number < 9.995 else 1 if number < 99.95 else 0
    return f"{number:.{digits}f} {unit}"


def human_seconds(seconds: float) -> str:
    """``0.9 s``, ``35 ms`` or ``2 min 5 s``."""
    if seconds < 0.0995:
        return f"{seconds * 1000:.{0 if seconds >= 0.00095 else 1}f} ms"
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    return f"{int(seconds + 0.5) // 60} min {int(seconds + 0.5) % 60} s"


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """``1 input``, ``3 inputs``."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def beginning(text: str, width: int) -> str:
    """``text``, or its beginning and ``…`` if it is longer than ``width`` characters."""
    return text if len(text) <= width else f"{text[: width - 1]}…"


def shortened(names: Iterable[str], limit: int) -> str:
    """The first ``limit`` names, in one line, and the number of the others."""
    names = list(names)
    more = f", … {len(names) - limit} more" if len(names) > limit else ""
    return escaped(", ".join(names[:limit])) + more
