"""Plain tables and numbers for people to read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from unicodedata import combining, east_asian_width

#: No cell is made narrower than this.
_LEAST = 12


@dataclass
class Table:
    """Rows of text under headings.

    Attributes:
        columns: headings; all empty ones leave the heading line out.
        align: for each column ``<`` or ``>``.
        rows: a row may be shorter than the headings.
    """

    columns: Sequence[str]
    align: str
    rows: list[Sequence[str]] = field(default_factory=list)

    def add(self, *cells: object) -> None:
        """Append a row."""
        self.rows.append([str(cell) for cell in cells])

    def lines(self, indent: str = "") -> list[str]:
        """The table as aligned text."""
        everything = [self.columns, *self.rows] if any(self.columns) else list(self.rows)
        widths = self._widths()
        return [(indent + self._line(row, widths)).rstrip() for row in everything]

    def fitted(self, width: int, *, gap: int = 2, wraps: bool = False) -> Table:
        """The same table in at most ``width`` columns, if need be with long cells shortened in the middle.

        Args:
            width: columns of a terminal.
            gap: how many of them lie between two columns of the table.
            wraps: cells with spaces stay as they are, since whoever prints the table wraps them.
        """
        widths = self._widths()
        spare = width - gap * (len(widths) - 1)
        while sum(widths) > spare and max(widths, default=0) > _LEAST:
            widths[widths.index(max(widths))] -= 1
        rows = [
            [
                cell if wraps and " " in cell.strip() else middle(cell, most)
                for cell, most in zip(row, widths, strict=False)
            ]
            for row in self.rows
        ]
        return Table(self.columns, self.align, list(rows))

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


def pad(cell: str, width: int, align: str = "<") -> str:
    """``cell`` filled up with spaces to ``width`` columns of a terminal."""
    space = " " * max(0, width - text_width(cell))
    return space + cell if align == ">" else cell + space


def middle(text: str, width: int) -> str:
    """``text`` in at most ``width`` columns: ``model.encoder…dense.bias``."""
    if text_width(text) <= width:
        return text
    end = (width - 1) // 2
    start = width - 1 - end
    while text_width(text[:start]) + text_width(text[len(text) - end :]) > width - 1:
        start, end = start - 1, max(0, end - 1)
    return f"{text[:start]}…{text[len(text) - end :]}"


def text_width(text: str) -> int:
    """Columns that ``text`` takes in a terminal."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(char) else 2 if east_asian_width(char) in "WF" else 1 for char in text)


def human_bytes(number: int) -> str:
    """``82.4 MB``: three figures, powers of 1000, as file managers count."""
    return f"{number} B" if number < 1000 else f"{_scaled(number)}B"


def human_count(number: int) -> str:
    """``21.1 M``, and small numbers in full: ``1,801``."""
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


def shortened(names: Iterable[str], limit: int) -> str:
    """The first ``limit`` names, and how many more there are."""
    names = list(names)
    more = f", … {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
