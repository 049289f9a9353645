"""The results of the check: one row for each item of a section, as JSON lines and as Markdown tables."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from benchmarks.doc_tables import markdown_table

Status = Literal["ok", "wrong", "failed", "skipped", "late"]
#: Statuses of results that make the check fail.
FAULTS: tuple[Status, ...] = ("wrong", "failed")
#: Maximum length of a note in a table, in characters.
_NOTE = 160


@dataclass(frozen=True)
class Row:
    """The result of one item.

    Attributes:
        section: name of the section.
        item: name of the item.
        status: ``wrong`` if values differ by more than the tolerance; ``failed`` if the item could not be
            measured; ``skipped`` if it does not apply to the device; ``late`` if no time was left.
        figures: measurements, by name of the column.
        note: the reason, if the status is not ``ok``, or a remark.
    """

    section: str
    item: str
    status: Status
    figures: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""

    def json(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self), allow_nan=False)

    @classmethod
    def parse(cls, line: str) -> Row:
        """The inverse of :meth:`json`."""
        return cls(**json.loads(line))


@dataclass(frozen=True)
class Column:
    """A column of a section's table.

    Attributes:
        figure: the name of the figure.
        title: the heading.
        text: formats a figure.
    """

    figure: str
    title: str
    text: Callable[[Any], str] = str


def number(digits: int) -> Callable[[Any], str]:
    """A format with this number of significant digits."""
    return lambda value: f"{value:.{digits}g}"


def error(value: float) -> str:
    """An error as a power of ten with one digit."""
    return f"{value:.0e}"


def share(value: float) -> str:
    """A share in percent."""
    return f"{value:.0%}"


def ratio(value: float) -> str:
    """A factor with two decimals."""
    return f"{value:.2f}"


def table(columns: Sequence[Column], rows: Sequence[Row]) -> str:
    """The Markdown table of a section; columns without figures are omitted."""
    shown = [column for column in columns if any(_figure(row, column) is not None for row in rows)]
    noted = any(row.note for row in rows)
    header = ["item", *(column.title for column in shown), "result", *(["note"] if noted else [])]
    lines = [list(_cells(row, shown)) + ([_short(row.note)] if noted else []) for row in rows]
    return markdown_table(header, lines)


def _cells(row: Row, columns: Sequence[Column]) -> Iterator[str]:
    yield row.item
    for column in columns:
        value = _figure(row, column)
        yield "–" if value is None else column.text(value)
    yield row.status


def _figure(row: Row, column: Column) -> Any:
    return row.figures.get(column.figure)


def _short(note: str) -> str:
    line = " ".join(note.split()).replace("|", "\\|")
    return line if len(line) <= _NOTE else line[: _NOTE - 1] + "…"
