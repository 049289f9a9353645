"""Groups never need each other, and finding them takes time that grows with the edges."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from graphopt.ir.topological_order import cycle_of
from graphopt.partitioning.convex import convex_groups, trimmed

Feeds = list[list[int]]


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[bool], list[bool], Feeds]:
    """Nodes, of which some may be grouped, some of these only go along, and who reads them."""
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
    """Whether there is a cycle once each group is one node."""
    unit = {node: group[0] for group in groups for node in group}
    edges: dict[int, list[int]] = {unit.get(node, node): [] for node in range(len(feeds))}
    for node, readers in enumerate(feeds):
        for reader in readers:
            if unit.get(node, node) != unit.get(reader, reader):
                edges[unit.get(node, node)].append(unit.get(reader, reader))
    return bool(cycle_of(edges))


@given(graphs())
def test_groups_do_not_need_each_other(graph: tuple[list[bool], list[bool], Feeds]) -> None:
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
def test_without_obstacles_what_is_connected_is_one_group(graph: tuple[Any, Any, Feeds]) -> None:
    feeds = graph[2]
    groups = convex_groups([True] * len(feeds), feeds)
    unit = {node: group[0] for group in groups for node in group}
    assert all(unit[node] == unit[reader] for node, readers in enumerate(feeds) for reader in readers)


def test_two_pairs_that_would_need_each_other() -> None:
    """a → d and c → b with a → b and c → d: {a, b} and {c, d} are right alone, and not together."""
    a, c, b, d = range(4)
    feeds = [[b, d], [b, d], [], []]
    assert need_each_other([[a, b], [c, d]], feeds)
    assert convex_groups([True] * 4, feeds) == [[a, c, b, d]]
    # with an obstacle on each of the ways that cross, as in a → o → d and c → p → b
    a, c, o, p, b, d = range(6)
    feeds = [[b, o], [d, p], [d], [b], [], []]
    assert need_each_other([[a, b], [c, d]], feeds)
    groups = convex_groups([True, True, False, False, True, True], feeds)
    assert not need_each_other(groups, feeds)


def test_what_is_computed_early_and_read_late_joins_its_readers() -> None:
    # x → o → y, where o is an obstacle, and weight w is read by y alone
    x, w, o, y = range(4)
    assert convex_groups([True, True, False, True], [[o], [y], [y], []]) == [[x], [w, y]]


class Counted(list[list[int]]):
    """Edges that count how often they are looked at."""

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


def test_each_edge_is_looked_at_a_few_times() -> None:
    for count in (1000, 4000):
        feeds = [[r for r in (n + 1, n + 2, n + 9) if r < count] for n in range(count)]
        edges = sum(map(len, feeds))
        assert _looks([n % 7 != 0 for n in range(count)], feeds) <= 4 * edges
        assert _looks([True] * count, feeds) <= 4 * edges
