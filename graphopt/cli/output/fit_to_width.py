"""Fit text and tables to the width of a terminal.

Words are never split: a name that is longer than a line stays in one piece, so that it can be copied. Names
in tables are never shortened: columns that do not fit continue on a second line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from graphopt.util.text_tables import Table, pad, text_width

#: Spaces between two columns of a table.
_GAP = 2
#: Minimum width of a cell of prose, in characters; a column that would be narrower moves to the second line.
_PROSE = 24
#: Extra indentation of continuation lines.
_HANG = 2
#: Lines indented by this many spaces continue other lines, and their own continuations align with them.
_DEEP = 8
#: Maximum share of the line for a first column; longer names are on a separate line.
_NAMES = 0.5

#: The dashes that extend a heading to a full line.
_DASHES = re.compile(r"(?<= )─{2,}$")
_LABEL = re.compile(r" *\S+(?: \S+)*? {2,}(?=\S)")


def wrapped(text: str, width: int, hang: int | None = None) -> list[str]:
    """``text`` in lines of at most ``width`` columns, broken at spaces.

    Args:
        hang: indentation of continuation lines. By default they align with the text after a label (words and
            two spaces, ``  verified  bit-identical in …``), or are indented by a few spaces.
    """
    return [line for part in text.split("\n") for line in _wrapped_line(part, width, hang)]


def heading_within(text: str, width: int) -> str:
    """``text`` with its trailing dashes cut at ``width`` columns; text without dashes is unchanged."""
    excess = text_width(text) - width
    dashes = _DASHES.search(text)
    if dashes is None or excess <= 0:
        return text
    title, left = text[: dashes.start()], len(dashes[0]) - excess
    return title + "─" * left if left > 0 else title.rstrip()


def _wrapped_line(text: str, width: int, hang: int | None) -> list[str]:
    text = heading_within(text, width)
    if text_width(text) <= width:
        return [text]
    label = _LABEL.match(text)
    if hang is None:
        indent = len(text) - len(text.lstrip())
        hang = indent if indent >= _DEEP else indent + _HANG
        if label is not None and label.end() <= width // 3:
            hang = label.end()
    lines = [""]
    used = 0
    for space, word in re.findall(r"( *)(\S+)", text):
        size = text_width(word)
        if used and used + len(space) + size > width and lines[-1].strip():
            lines.append(" " * hang)
            used, space = hang, ""
        lines[-1] += space + word
        used += len(space) + size
    return lines


def fitted(table: Table, width: int, indent: str = "  ") -> tuple[list[str], list[str]]:
    """The lines of the heading and the lines of the rows, in at most ``width`` columns.

    Prose wraps in its column. Columns that do not fit are removed from the table: their cells follow each row
    on separate lines, with the headings.
    """
    room = width - len(indent)
    cells = [[*row, *[""] * (len(table.columns) - len(row))] for row in table.rows]
    kept = len(table.columns)
    while kept > 1 and _total(_least(table, cells, kept, room)) > room:
        kept -= 1
    widths = _widths(table, cells, kept, room)
    head = list(_row(table.columns[:kept], widths, table.align, indent)) if any(table.columns[:kept]) else []
    body: list[str] = []
    for row in cells:
        first = row[:kept]
        if kept > 1 and text_width(first[0]) > widths[0]:
            body.append(indent + first[0])
            first = ["", *first[1:]]
        if any(cell.strip() for cell in first):
            body += _row(first, widths, table.align, indent)
        rest = [
            (name, cell) for name, cell in zip(table.columns[kept:], row[kept:], strict=True) if cell.strip()
        ]
        if rest:
            hang = len(indent) + 2 * _HANG
            text = "   ".join(f"{name} {cell.strip()}".strip() for name, cell in rest)
            body += wrapped(" " * hang + text, width, hang)
    return head, body


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + _GAP * (len(widths) - 1)


def _column(table: Table, cells: Sequence[Sequence[str]], index: int, room: int) -> list[str]:
    """The cells that determine the width of a column: all except the overlong names of a first column."""
    column = [row[index] for row in cells]
    if index == 0 and len(table.columns) > 1:
        column = [cell for cell in column if text_width(cell) <= _NAMES * room]
    return column


def _least(table: Table, cells: Sequence[Sequence[str]], kept: int, room: int) -> list[int]:
    """The smallest acceptable width of each of the first ``kept`` columns."""
    found = []
    for index, heading in enumerate(table.columns[:kept]):
        column = _column(table, cells, index, room)
        whole = max(map(text_width, column), default=0)
        if table.align[index] == "<" and index > 0:
            words = max((text_width(word) for cell in column for word in cell.split()), default=0)
            whole = max(words, min(whole, _PROSE))
        found.append(max([whole, *map(text_width, heading.split())]))
    return found


def _widths(table: Table, cells: Sequence[Sequence[str]], kept: int, room: int) -> list[int]:
    least = _least(table, cells, kept, room)
    widths = [
        max([text_width(heading), *map(text_width, _column(table, cells, index, room))])
        for index, heading in enumerate(table.columns[:kept])
    ]
    while _total(widths) > room:
        spare = [width - low for width, low in zip(widths, least, strict=True)]
        widest = max(range(kept), key=lambda index: (spare[index] > 0, widths[index]))
        if spare[widest] <= 0:
            break
        widths[widest] -= 1
    return widths


def _row(cells: Sequence[str], widths: Sequence[int], align: str, indent: str) -> Iterator[str]:
    columns = [_wrapped_cell(cell, width) for cell, width in zip(cells, widths, strict=True)]
    for number in range(max(map(len, columns))):
        line = [column[number] if number < len(column) else "" for column in columns]
        padded = (pad(cell, width, way) for cell, width, way in zip(line, widths, align, strict=False))
        yield (indent + (" " * _GAP).join(padded)).rstrip()


def _wrapped_cell(cell: str, width: int) -> list[str]:
    """The lines of a cell; leading spaces, which indent the first column, are kept."""
    lead = len(cell) - len(cell.lstrip())
    return wrapped(cell, width, lead)
