"""Lines and tables of reports as HTML of a page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from graphopt.page.section import from_template
from graphopt.util.text_tables import Block, Line, Table

if TYPE_CHECKING:
    from markupsafe import Markup

_TEMPLATE = """
{% for block in blocks %}
{% if block.rows is defined %}
<div class="wide"><table class="data">
{% if block.head %}
<thead><tr>
{% for cell, kind in block.head %}<th scope="col" class="{{ kind }}">{{ cell }}</th>{% endfor %}
</tr></thead>
{% endif %}
<tbody>
{% for row in block.rows %}
<tr>{% for cell, kind in row %}<td class="{{ kind }}">{{ cell }}</td>{% endfor %}</tr>
{% endfor %}
</tbody>
</table></div>
{% else %}
<p class="{{ block.tone }}">{{ block.text }}</p>
{% endif %}
{% endfor %}
"""
_ALIGNED = {"<": "text", ">": "number"}


def html_of_blocks(blocks: Iterable[Block]) -> Markup:
    """``blocks`` as paragraphs and tables; classes are the tone of a line and the alignment of a cell."""
    return from_template(_TEMPLATE, blocks=[_plain(block) for block in blocks if not _is_blank(block)])


def _is_blank(block: Block) -> bool:
    return isinstance(block, str) and not block.strip()


def _plain(block: Block) -> dict[str, Any]:
    """A block as data of the template."""
    if isinstance(block, Table):
        return {
            "head": _cells(block.columns, block.align) if any(block.columns) else [],
            "rows": [_cells(_padded(row, len(block.align)), block.align) for row in block.rows],
        }
    return {"text": block.strip(), "tone": block.tone if isinstance(block, Line) else "plain"}


def _padded(row: Sequence[str], width: int) -> list[str]:
    """A row with a cell for each column, so that its line has the width of the table."""
    return [*row, *[""] * (width - len(row))]


def _cells(cells: Iterable[str], align: str) -> list[tuple[str, str]]:
    return [(cell, _ALIGNED[side]) for cell, side in zip(cells, align, strict=False)]
