"""Lines and tables of reports as HTML, for notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape

from graphopt.util.text_tables import Block, Table

_ALIGN = {"<": "left", ">": "right"}


def html_of(blocks: Iterable[Block]) -> str:
    """Lines and tables as HTML without scripts, style sheets or images; all text is escaped."""
    return "".join(_parts(blocks))


def _parts(blocks: Iterable[Block]) -> Iterator[str]:
    for block in blocks:
        if isinstance(block, Table):
            yield from _table(block)
        elif block.strip():
            yield f"<div>{escape(block.strip())}</div>"


def _table(table: Table) -> Iterator[str]:
    yield "<table>"
    if any(table.columns):
        yield _row(table.columns, table.align, "th")
    for cells in table.rows:
        yield _row(cells, table.align, "td")
    yield "</table>"


def _row(cells: Sequence[str], align: str, tag: str) -> str:
    styled = (
        f'<{tag} style="text-align: {_ALIGN[side]}">{escape(cell).replace("  ", "&emsp;")}</{tag}>'
        for cell, side in zip(cells, align, strict=False)
    )
    return f"<tr>{''.join(styled)}</tr>"
