"""Convex groups of a graph, without cycles between them, in time linear in its edges.

Groups that are convex individually can depend on each other: with a → d and c → b, the groups {a, b} and {c,
d} depend on each other. Contracting one group at a time requires a search for cycles each time, as in
PyTorch's JIT (``create_autodiff_subgraphs.cpp``, ``moveBeforeTopologicallyValid``). Here each node has a
level instead: no edge leads to a lower level, and an edge from a groupable node to an ungroupable one leads
to a higher level. Adjacent groupable nodes of equal level form a group. A path that leaves a group reaches a
higher level and never returns, so that no cycle of groups is possible.

First, each node has its lowest possible level. Then, from the end, groups rise to the lowest level of their
readers if that merges them with a reader's group: a value that is computed early and read late, such as a
transposed weight, joins its readers.
"""

from __future__ import annotations

from collections.abc import Sequence


def convex_groups(inside: Sequence[bool], feeds: Sequence[Sequence[int]]) -> list[list[int]]:
    """The groups, each in ascending order, in the order of their first nodes.

    Args:
        inside: for each node, in topological order, whether it may be in a group.
        feeds: the readers of each node.

    >>> convex_groups([True, False, True, True], [[1, 2], [3], [3], []])
    [[0, 2], [3]]
    """
    level = _lowest(inside, feeds)
    sets = _Sets(len(inside))
    for node, readers in enumerate(feeds):
        if inside[node]:
            for reader in readers:
                if inside[reader] and level[reader] == level[node]:
                    sets.join(node, reader)
    _rise(inside, feeds, level, sets)
    return _parts(inside, sets)


def _lowest(inside: Sequence[bool], feeds: Sequence[Sequence[int]]) -> list[int]:
    level = [0] * len(inside)
    for node, readers in enumerate(feeds):
        for reader in readers:
            level[reader] = max(level[reader], level[node] + (inside[node] and not inside[reader]))
    return level


def _rise(inside: Sequence[bool], feeds: Sequence[Sequence[int]], level: list[int], sets: _Sets) -> None:
    """Raise levels, and merge groups with the groups of their readers."""
    top = max(level, default=0) + 1
    floors: list[tuple[list[list[int]], list[int]]] = [([], []) for _ in range(top)]
    for part in _parts(inside, sets):
        floors[level[part[0]]][0].append(part)
    for node in range(len(inside)):
        if not inside[node]:
            floors[level[node]][1].append(node)
    for parts, others in reversed(floors):
        for part in parts:  # no edge leads from one part to another of the same level
            own = sets.root(part[0])
            read = [reader for node in part for reader in feeds[node]]
            bounds = [level[r] - (not inside[r]) for r in read if not inside[r] or sets.root(r) != own]
            bound = min(bounds, default=0)
            joins = [r for r in read if inside[r] and level[r] == bound and sets.root(r) != own]
            if joins:
                for node in part:
                    level[node] = bound
                for reader in joins:
                    sets.join(part[0], reader)
        for node in reversed(others):
            level[node] = min((level[reader] for reader in feeds[node]), default=top)


def _parts(inside: Sequence[bool], sets: _Sets) -> list[list[int]]:
    found: dict[int, list[int]] = {}
    for node, may in enumerate(inside):
        if may:
            found.setdefault(sets.root(node), []).append(node)
    return list(found.values())


class _Sets:
    """Disjoint sets of numbers."""

    def __init__(self, count: int) -> None:
        self._above = list(range(count))
        self._size = [1] * count

    def root(self, item: int) -> int:
        """The representative of the set of ``item``."""
        above = self._above
        while above[item] != item:
            above[item] = above[above[item]]
            item = above[item]
        return item

    def join(self, one: int, other: int) -> None:
        """Merge the sets of two numbers."""
        one, other = self.root(one), self.root(other)
        if self._size[one] < self._size[other]:
            one, other = other, one
        if one != other:
            self._above[other] = one
            self._size[one] += self._size[other]


def trimmed(
    group: Sequence[int], passthrough: Sequence[bool], feeds: Sequence[Sequence[int]]
) -> tuple[list[list[int]], list[int]]:
    """Remove pass-through nodes at the edge of a group; returns the remaining groups, and the removed nodes.

    The rest may split into several groups. A node at the edge has no predecessor or no successor in the
    group, so that removing it keeps the group convex.
    """
    left = dict.fromkeys(group)
    successors = {node: [reader for reader in feeds[node] if reader in left] for node in group}
    predecessors: dict[int, list[int]] = {node: [] for node in group}
    for node in group:
        for reader in successors[node]:
            predecessors[reader].append(node)
    out_degree = {node: len(found) for node, found in successors.items()}
    in_degree = {node: len(found) for node, found in predecessors.items()}
    removed = dict.fromkeys(
        node for node in group if passthrough[node] and not (in_degree[node] and out_degree[node])
    )
    pending = list(removed)
    for node in pending:  # ``pending`` grows during the iteration
        del left[node]
        for counts, neighbours in ((in_degree, successors[node]), (out_degree, predecessors[node])):
            for neighbour in neighbours:
                counts[neighbour] -= 1
                if passthrough[neighbour] and counts[neighbour] == 0 and neighbour not in removed:
                    removed[neighbour] = None
                    pending.append(neighbour)
    if not removed:
        return [list(group)], []
    places = {node: place for place, node in enumerate(left)}
    sets = _Sets(len(places))
    for node in left:
        for reader in successors[node]:
            if reader in places:
                sets.join(places[node], places[reader])
    parts: dict[int, list[int]] = {}
    for node, place in places.items():
        parts.setdefault(sets.root(place), []).append(node)
    return list(parts.values()), pending
