"""Minimum cuts."""

from __future__ import annotations

import time
from itertools import product

import numpy as np
import pytest

from graphopt.util.min_cut import Network, Unbounded

Edges = list[tuple[int, int, int | None]]


def built(count: int, edges: Edges) -> Network:
    network = Network()
    for _ in range(count):
        network.node()
    for edge in edges:
        network.edge(*edge)
    return network


def by_trying(count: int, edges: Edges) -> tuple[int, list[bool]] | None:
    """The minimum cut with the fewest nodes on the sink's side; None if there is no finite cut."""
    found = []
    for inner in product((False, True), repeat=count - 2):
        late = [False, True, *inner]
        cut = [capacity for tail, head, capacity in edges if late[head] and not late[tail]]
        if None not in cut:
            found.append((sum(filter(None, cut)), sum(late), late))
    return min(found)[::2] if found else None


def test_cuts_of_small_networks_equal_exhaustive_search() -> None:
    unbounded = 0
    for seed in range(400):
        random = np.random.default_rng(seed)
        count = int(random.integers(2, 8))
        capacities = [None, 0, 1, 2, 3, 5, 10**25]
        edges: Edges = [
            (*map(int, random.integers(0, count, 2)), capacities[random.integers(7)])
            for _ in range(random.integers(0, 20))
        ]
        truth = by_trying(count, edges)
        if truth is None:
            unbounded += 1
            with pytest.raises(Unbounded):
                built(count, edges).cut(0, 1)
        else:
            assert built(count, edges).cut(0, 1) == truth
    assert unbounded > 20


def test_large_capacities_are_exact() -> None:
    big = 10**40
    network = built(4, [(0, 2, big), (0, 3, 1), (2, 1, big - 1), (3, 1, None)])
    assert network.cut(0, 1) == (big, [False, True, False, True])


@pytest.mark.parametrize("every", [1, 50, 20_000])
def test_long_chains_take_subquadratic_time(every: int) -> None:
    """Nearly free work: flow into each of a chain of 20,000 values continues to the cut."""
    network = Network()
    source, sink = network.node(), network.node()
    last = None
    for index in range(20_000):
        made, handed = network.node(), network.node()
        network.edge(source, made, None if index == 0 else 1)
        network.edge(made, handed, 10**9 + index * 7919 % 1000)
        if last is not None:
            network.edge(last, made)
        if index % every == every - 1:
            network.edge(handed, sink)
        last = handed
    begin = time.process_time()
    total, _ = network.cut(source, sink)
    assert total >= 10**9 and time.process_time() - begin < 5
