"""Draw the groups of a model, as SVG or in the DOT language of Graphviz."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import field
from xml.sax.saxutils import escape

from graphopt import ir
from graphopt.instrument.graphviz import quoted
from graphopt.partitioning.group_report import Group, Partitioned
from graphopt.partitioning.propose_groups import edges, is_constant
from graphopt.util.lazy_dataclass import dataclass
from graphopt.util.text_tables import counted

_COLOURS = ("#a5d8ff", "#b2f2bb", "#ffec99", "#ffc9c9", "#d0bfff", "#99e9f2", "#fcc2d7", "#d8f5a2")
_PLAIN = "#f1f3f5"
_WIDTH, _HEIGHT, _GAP, _STEP, _MARGIN = 190, 40, 24, 78, 16
#: Number of operators named in the box of a group.
_NAMED = 3


def to_dot(found: Partitioned) -> str:
    """The main graph in the DOT language: a box for each node, a frame for each group."""
    return "\n".join(_dot(found)) + "\n"


def _dot(found: Partitioned) -> Iterator[str]:
    nodes = [node for node in found.model.graph if not is_constant(node)]
    names = {node: f"n{index}" for index, node in enumerate(nodes)}
    yield "digraph groups {"
    yield "  node [shape=box, style=filled, fillcolor=white, fontname=monospace];"
    grouped: dict[ir.Node, None] = {}
    for number, group in enumerate(_main(found)):
        colour = _COLOURS[number % len(_COLOURS)]
        frame = f"label={quoted(group.name)}; style=filled; color={quoted(colour)};"
        yield f"  subgraph cluster_{number} {{ {frame}"
        for node in group.partition.nodes:
            grouped[node] = None
            yield f"    {names[node]} [label={quoted(node.op_type)}, tooltip={quoted(ir.label(node))}];"
        yield "  }"
    for node in nodes:
        if node not in grouped:
            yield f"  {names[node]} [label={quoted(node.op_type)}, tooltip={quoted(ir.label(node))}];"
    for index, readers in enumerate(edges(nodes)):
        for reader in readers:
            yield f"  {names[nodes[index]]} -> {names[nodes[reader]]};"
    yield "}"


@dataclass
class _Box:
    """A group, or the ungrouped nodes of one operator on one level."""

    level: int
    group: Group | None = None
    ops: Counter[str] = field(default_factory=Counter)
    column: int = 0


def to_svg(found: Partitioned) -> str:
    """The main graph as an SVG document: boxes for groups, and for ungrouped nodes, per operator and level.

    Each box is below the boxes that it reads from.
    """
    boxes, lines = _boxes(found)
    rows: dict[int, list[_Box]] = {}
    for box in boxes:
        box.column = len(rows.setdefault(box.level, []))
        rows[box.level].append(box)
    width = max(map(len, rows.values()), default=1) * (_WIDTH + _GAP) - _GAP + 2 * _MARGIN
    height = max(len(rows), 1) * _STEP - (_STEP - _HEIGHT) + 2 * _MARGIN
    place = {level: row for row, level in enumerate(sorted(rows))}
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    corner = {
        id(box): (_MARGIN + box.column * (_WIDTH + _GAP), _MARGIN + place[box.level] * _STEP) for box in boxes
    }
    for one, other in lines:
        (x, y), (u, v) = corner[id(one)], corner[id(other)]
        ends = f'x1="{x + _WIDTH / 2}" y1="{y + _HEIGHT}" x2="{u + _WIDTH / 2}" y2="{v}"'
        parts.append(f'<line {ends} stroke="#868e96"/>')
    number = 0
    for box in boxes:
        colour = _PLAIN
        if box.group is not None:
            colour = _COLOURS[number % len(_COLOURS)]
            number += 1
        parts += _draw(box, *corner[id(box)], colour)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _boxes(found: Partitioned) -> tuple[list[_Box], list[tuple[_Box, _Box]]]:
    """The boxes, and the edges between them."""
    nodes = [node for node in found.model.graph if not is_constant(node)]
    group_of = {node: group for group in _main(found) for node in group.partition.nodes}
    units = [id(group_of[node]) if node in group_of else id(node) for node in nodes]
    feeds: dict[int, dict[int, None]] = {unit: {} for unit in units}
    for index, readers in enumerate(edges(nodes)):
        feeds[units[index]].update(
            (units[reader], None) for reader in readers if units[reader] != units[index]
        )
    needs: dict[int, list[int]] = {unit: [] for unit in feeds}
    for unit, readers_of in feeds.items():
        for reader in readers_of:
            needs[reader].append(unit)
    level: dict[int, int] = {}
    for unit in ir.feed_order(needs):
        level[unit] = max((level[need] + 1 for need in needs[unit]), default=0)
    boxes: dict[tuple[int, object], _Box] = {}
    box_of: dict[int, _Box] = {}
    for node, unit in zip(nodes, units, strict=True):
        group = group_of.get(node)
        key = (level[unit], unit if group is not None else node.op_type)
        box = box_of[unit] = boxes.setdefault(key, _Box(level[unit], group))
        box.ops[node.op_type] += 1
    lines: dict[tuple[int, int], tuple[_Box, _Box]] = {}
    for unit, readers_of in feeds.items():
        for reader in readers_of:
            pair = box_of[unit], box_of[reader]
            lines[id(pair[0]), id(pair[1])] = pair
    return list(boxes.values()), list(lines.values())


def _draw(box: _Box, x: int, y: int, colour: str) -> list[str]:
    ops = [f"{op} × {count}" if count > 1 else op for op, count in box.ops.most_common()]
    text = ", ".join(ops[:_NAMED]) + (" …" if len(ops) > _NAMED else "")
    title = "" if box.group is None else f"{box.group.name}: {counted(sum(box.ops.values()), 'node')}"
    middle = x + _WIDTH // 2
    parts = [
        f'<rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="4" fill="{colour}" stroke="#495057">'
        f"<title>{escape(', '.join(ops))}</title></rect>"
    ]
    if title:
        parts.append(
            f'<text x="{middle}" y="{y + 16}" text-anchor="middle" font-weight="bold">{escape(title)}</text>'
        )
    below = 32 if title else 24
    parts.append(
        f'<text x="{middle}" y="{y + below}" text-anchor="middle" font-size="10">{escape(text)}</text>'
    )
    return parts


def _main(found: Partitioned) -> list[Group]:
    return [group for group in found.groups if group.partition.graph is found.model.graph]
