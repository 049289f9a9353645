"""Positions of boxes: layers, distances, determinism, and growth with the number of boxes."""

from __future__ import annotations

import itertools
import random
import time

import pytest

from graphopt.page.layered_layout import Edge, Positions, layered_layout

pytest.importorskip("fast_sugiyama")


def _random_edges(count: int, seed: int = 1) -> list[Edge]:
    """Two edges to each box, from boxes shortly before it."""
    choose = random.Random(seed)
    return [(max(0, box - choose.randint(1, reach)), box) for box in range(1, count) for reach in (20, 200)]


GRAPHS = {
    "none": (0, []),
    "one": (1, []),
    "chain": (50, [(box, box + 1) for box in range(49)]),
    "skips": (60, [(box, box + 1) for box in range(59)] + [(box, box + 6) for box in range(0, 54, 6)]),
    "fan out": (40, [(0, box) for box in range(1, 40)]),
    "fan in": (40, [(box, 39) for box in range(39)]),
    "constants": (40, [(box, box + 1) for box in range(19)] + [(20 + box, box) for box in range(20)]),
    "late sources": (30, [(0, 29), *((box, box + 1) for box in range(1, 29))]),
    "isolated": (100, []),
    "parts": (100, [(box, box + 1) for box in range(99) if box % 10 != 9]),
    "random": (400, _random_edges(400)),
    "repeated edges": (3, [(0, 1), (0, 1), (1, 2), (0, 0), (2, 1)]),
}


def _rows(at: Positions) -> list[list[float]]:
    rows: dict[int, list[float]] = {}
    for layer, x in zip(at.layer, at.x, strict=True):
        rows.setdefault(layer, []).append(x)
    return [sorted(row) for row in rows.values()]


@pytest.mark.parametrize("graph", GRAPHS)
def test_boxes_do_not_overlap(graph: str) -> None:
    for row in _rows(layered_layout(*GRAPHS[graph])):
        for left, right in itertools.pairwise(row):
            assert right - left >= 1 - 0.011  # positions are rounded to 0.01


@pytest.mark.parametrize("graph", GRAPHS)
def test_edges_point_to_later_layers(graph: str) -> None:
    count, edges = GRAPHS[graph]
    layer = layered_layout(count, edges).layer
    assert all(layer[first] < layer[second] for first, second in edges if first < second)


@pytest.mark.parametrize("graph", GRAPHS)
def test_every_box_has_a_position_from_0(graph: str) -> None:
    count, edges = GRAPHS[graph]
    at = layered_layout(count, edges)
    assert len(at.layer) == len(at.x) == count
    assert not count or (min(at.layer), min(at.x)) == (0, 0)


def test_layers_are_the_longest_paths() -> None:
    assert layered_layout(4, [(0, 1), (1, 2), (0, 3), (2, 3)]).layer == [0, 1, 2, 3]


def test_a_box_without_predecessors_is_directly_above_its_reader() -> None:
    at = layered_layout(5, [(0, 1), (1, 2), (2, 4), (3, 4)])
    assert at.layer == [0, 1, 2, 2, 3]


def test_edges_against_the_order_do_not_influence_the_layout() -> None:
    assert layered_layout(3, [(0, 1), (1, 2), (2, 0)]) == layered_layout(3, [(0, 1), (1, 2)])


def test_a_chain_is_straight() -> None:
    assert set(layered_layout(*GRAPHS["chain"]).x) == {0.0}


def test_many_parts_form_several_rows() -> None:
    at = layered_layout(100, [])
    assert max(at.x) < 30 and max(at.layer) > 2


@pytest.mark.parametrize("graph", GRAPHS)
def test_two_layouts_are_equal(graph: str) -> None:
    count, edges = GRAPHS[graph]
    first = layered_layout(count, edges)
    assert first == layered_layout(count, list(reversed(edges)))


def _seconds(count: int) -> float:
    """CPU seconds of a layout with random edges."""
    edges = _random_edges(count)
    begin = time.process_time()
    layered_layout(count, edges)
    return time.process_time() - begin


def test_time_grows_linearly_up_to_20_000_boxes() -> None:
    # 8 times the boxes; a quadratic method would take 64 times the time
    small, large = (min(_seconds(count) for _ in range(2)) for count in (2_500, 20_000))
    assert large < 30 * small
