"""Groups have no cycles between them, and are found in time linear in the edges."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from graphopt.ir.topological_order import cycle_of
from graphopt.partitioning.convex_groups import convex_groups, trimmed

Feeds = list[list[int]]


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[bool], list[bool], Feeds]:
    """Random nodes: which may be grouped, which are pass-through, and their readers."""
    count = draw(st.integers(1, 24))
    inside = draw(st.lists(st.booleans(), min_size=count, max_size=count))
    along = draw(st.lists(st.booleans(), min_size=count, max_size=count))
    pairs = draw(
        st.lists(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)), max_size=3 * count)
    )
    feeds: Feeds = [[] for _ in range(count)]
    for one, other in dict.fromkeys((min(pair), max(pair)) for pair in pairs):
        if one != other:
            feeds[one].append(other)
    return inside, [a and b for a, b in zip(inside, along, strict=True)], feeds


def need_each_other(groups: list[list[int]], feeds: Feeds) -> bool:
    """Whether contracting each group to a node creates a cycle."""
    unit = {node: group[0] for group in groups for node in group}
    edges: dict[int, list[int]] = {unit.get(node, node): [] for node in range(len(feeds))}
    for node, readers in enumerate(feeds):
        for reader in readers:
            if unit.get(node, node) != unit.get(reader, reader):
                edges[unit.get(node, node)].append(unit.get(reader, reader))
    return bool(cycle_of(edges))


@given(graphs())
def test_groups_have_no_cycles(graph: tuple[list[bool], list[bool], Feeds]) -> None:
    inside, along, feeds = graph
    groups = convex_groups(inside, feeds)
    assert sorted(node for group in groups for node in group) == [n for n, may in enumerate(inside) if may]
    assert all(group == sorted(group) for group in groups)
    assert not need_each_other(groups, feeds)
    parts = []
    for group in groups:
        kept, edge = trimmed(group, along, feeds)
        assert sorted([*edge, *(node for part in kept for node in part)]) == group
        assert all(along[node] for node in edge)
        parts += kept
    assert not need_each_other(parts, feeds)
    for part in parts:
        for node in part:
            if along[node]:  # one on each side
                assert any(node in feeds[other] for other in part) and any(r in part for r in feeds[node])


@given(graphs())
def test_connected_nodes_without_boundaries_are_one_group(graph: tuple[Any, Any, Feeds]) -> None:
    feeds = graph[2]
    groups = convex_groups([True] * len(feeds), feeds)
    unit = {node: group[0] for group in groups for node in group}
    assert all(unit[node] == unit[reader] for node, readers in enumerate(feeds) for reader in readers)


def test_two_pairs_that_would_depend_on_each_other() -> None:
    """a → d and c → b with a → b and c → d: {a, b} and {c, d} are convex alone, but not together."""
    a, c, b, d = range(4)
    feeds = [[b, d], [b, d], [], []]
    assert need_each_other([[a, b], [c, d]], feeds)
    assert convex_groups([True] * 4, feeds) == [[a, c, b, d]]
    # with a boundary on each crossing path, as in a → o → d and c → p → b
    a, c, o, p, b, d = range(6)
    feeds = [[b, o], [d, p], [d], [b], [], []]
    assert need_each_other([[a, b], [c, d]], feeds)
    groups = convex_groups([True, True, False, False, True, True], feeds)
    assert not need_each_other(groups, feeds)


def test_early_nodes_join_their_late_readers() -> None:
    # x → o → y with a boundary o, and a weight w that only y reads
    x, w, o, y = range(4)
    assert convex_groups([True, True, False, True], [[o], [y], [y], []]) == [[x], [w, y]]


class Counted(list[list[int]]):
    """Edges that count visits."""

    looks = 0

    def __getitem__(self, index: Any) -> Any:
        Counted.looks += len(super().__getitem__(index))
        return super().__getitem__(index)

    def __iter__(self) -> Iterator[list[int]]:
        for readers in super().__iter__():
            Counted.looks += len(readers)
            yield readers


def _looks(inside: Sequence[bool], feeds: Feeds) -> int:
    Counted.looks = 0
    convex_groups(inside, Counted(feeds))
    return Counted.looks


def test_each_edge_is_visited_a_few_times() -> None:
    for count in (1000, 4000):
        feeds = [[r for r in (n + 1, n + 2, n + 9) if r < count] for n in range(count)]
        edges = sum(map(len, feeds))
        assert _looks([n % 7 != 0 for n in range(count)], feeds) <= 4 * edges
        assert _looks([True] * count, feeds) <= 4 * edges
