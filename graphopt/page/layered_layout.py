"""Positions of boxes in layers: the only module that uses the layout library, fast-sugiyama.

A layer is the length of the longest path to a box, computed here. The library, which implements Sugiyama's
method ("Methods for visual understanding of hierarchical system structures", 1981), orders the boxes of a
layer. Its time grows with the total length of edges; edges beyond a budget do not influence the order.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from graphopt.errors import UsageError
from graphopt.page.section import INSTALL
from graphopt.util.lazy_dataclass import dataclass

#: Layers that the considered edges may skip in total, in multiples of the number of boxes.
_SKIPPED = 2
#: Number of boxes up to which the order is improved by exchanges of neighbours, whose time is quadratic.
_EXCHANGED = 600
#: The least width at which components start another row, in boxes.
_ROW = 24.0

#: The indexes of two boxes; the second one follows the first one.
Edge = tuple[int, int]


@dataclass(frozen=True)
class Positions:
    """The layer of each box, from 0, and its horizontal centre, in widths of boxes."""

    layer: list[int]
    x: list[float]


def layered_layout(count: int, edges: Sequence[Edge]) -> Positions:
    """Positions of ``count`` boxes; edges to an earlier index are ignored, so that there are no cycles.

    Two boxes of a layer have a distance of at least 1.

    Raises:
        UsageError: the layout library is not installed.
    """
    edges = sorted({(first, second) for first, second in edges if first < second})
    layer = _layers(count, edges)
    x = [0.0] * count
    left, top, height = 0.0, 0, 0
    for members, inside in _components(count, edges):
        _place(members, inside, layer, x)
        width = max(x[one] for one in members) + 1
        tall = max(layer[one] for one in members) + 1
        if left and left + width > max(_ROW, 2 * math.sqrt(count)):
            left, top, height = 0.0, top + height, 0
        for one in members:
            x[one] = round(x[one] + left, 2)
            layer[one] += top
        left, height = left + width, max(height, tall)
    return Positions(layer, x)


def _layers(count: int, edges: Sequence[Edge]) -> list[int]:
    """The lengths of the longest paths; a box without predecessors is directly above its first reader."""
    layer = [0] * count
    before: list[list[int]] = [[] for _ in range(count)]
    nearest: dict[int, int] = {}
    for first, second in edges:
        before[second].append(first)
    for box in range(count):
        layer[box] = max((layer[one] + 1 for one in before[box]), default=0)
    for first, second in edges:
        nearest[first] = min(layer[second], nearest.get(first, layer[second]))
    for box in range(count):
        if not before[box] and box in nearest:
            layer[box] = nearest[box] - 1
    return layer


def _components(count: int, edges: Sequence[Edge]) -> list[tuple[list[int], list[Edge]]]:
    """The boxes and edges of each connected component, by the first box."""
    root = list(range(count))

    def find(one: int) -> int:
        while root[one] != one:
            root[one] = root[root[one]]
            one = root[one]
        return one

    for first, second in edges:
        low, high = sorted((find(first), find(second)))
        root[high] = low
    members: dict[int, tuple[list[int], list[Edge]]] = {}
    for box in range(count):
        members.setdefault(find(box), ([], []))[0].append(box)
    for edge in edges:
        members[find(edge[0])][1].append(edge)
    return list(members.values())


def _place(members: Sequence[int], edges: Sequence[Edge], layer: Sequence[int], x: list[float]) -> None:
    """Set ``x`` of the boxes ``members`` of one component, from 0."""
    has_predecessor = {second for _, second in edges}
    # Such a box, often a constant, would be in the first layer of the library, with a long edge.
    satellites = {
        first: second for first, second in reversed(edges) if _is_lowered(first, has_predecessor, layer)
    }
    considered = _within_budget([edge for edge in edges if edge[0] not in satellites], layer, len(members))
    positions = _ordered(considered)
    for box in members:
        if box in positions:
            x[box] = positions[box]
    for box, reader in satellites.items():
        x[box] = x[reader]
    rows: dict[int, list[int]] = {}
    for box in members:
        rows.setdefault(layer[box], []).append(box)
    for row in rows.values():
        _spread(row, x)
    least = min(x[box] for box in members)
    for box in members:
        x[box] -= least


def _is_lowered(box: int, has_predecessor: set[int], layer: Sequence[int]) -> bool:
    return box not in has_predecessor and layer[box] > 0


def _within_budget(edges: Sequence[Edge], layer: Sequence[int], count: int) -> list[Edge]:
    """The shortest of ``edges``, which skip at most a number of layers proportional to ``count``."""
    budget, kept = _SKIPPED * count, []
    for first, second in sorted(edges, key=lambda edge: (layer[edge[1]] - layer[edge[0]], edge)):
        budget -= layer[second] - layer[first] - 1
        if budget < 0:
            break
        kept.append((first, second))
    return kept


def _ordered(edges: Sequence[Edge]) -> dict[int, float]:
    """Horizontal positions of the ends of ``edges`` by the library, components side by side."""
    if not edges:
        return {}
    try:
        import fast_sugiyama
    except ImportError as error:
        raise UsageError("the report page requires the package fast-sugiyama", hint=INSTALL) from error
    layouts = fast_sugiyama.from_edges(
        edges,
        vertex_spacing=1,
        minimum_length=1,
        dummy_size=0.5,
        ranking_type="up",
        crossing_minimization="barycenter",
        transpose=len(edges) <= _EXCHANGED,
    )
    ends = frozenset(box for edge in edges for box in edge)  # the layouts also have bends of edges
    parts = ({box: at[0] for box, at in layout[0] if box in ends} for layout in layouts)
    found: dict[int, float] = {}
    left = 0.0
    for part in sorted(parts, key=min):
        least = min(part.values())
        found |= {box: x - least + left for box, x in part.items()}
        left += max(part.values()) - least + 1
    return found


def _spread(row: list[int], x: list[float]) -> None:
    """Move the boxes ``row`` of one layer apart to distances of at least 1, and keep their mean."""
    row.sort(key=lambda box: (x[box], box))
    wanted = [x[box] for box in row]
    for left, right in itertools.pairwise(row):
        x[right] = max(x[right], x[left] + 1)
    shift = sum(x[box] - want for box, want in zip(row, wanted, strict=True)) / len(row)
    for box in row:
        x[box] -= shift
