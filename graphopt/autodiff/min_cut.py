"""Minimum cuts of networks with whole capacities, exactly.

A. V. Goldberg and R. E. Tarjan, "A new approach to the maximum-flow problem" (1988): what has flowed into a
node flows on towards the sink, from the highest nodes first, and nodes rise where it finds no way down. What
comes from many nodes of a long chain flows on as one, where algorithms that look for ways one by one, such as
Dinic's, take quadratic time. Python's ints hold any capacity, so that nothing is rounded.
"""

from __future__ import annotations

from array import array


class Unbounded(Exception):
    """Each way to cut the network cuts an edge that may not be cut."""


class Network:
    """A network that grows by nodes and edges.

    >>> network = Network()
    >>> a, b, c = (network.node() for _ in range(3))
    >>> network.edge(a, b, 3)
    >>> network.edge(b, c, 2)
    >>> network.cut(a, c)
    (2, [False, False, True])
    """

    def __init__(self) -> None:
        self._onward: list[list[int]] = []  # by node, edges that leave it; edge ^ 1 is the way back
        self._back: list[list[int]] = []  # by node, the ways back
        self._heads = array("q")
        self._capacities: list[int | None] = []

    def node(self) -> int:
        """A new node; they are numbered from 0."""
        self._onward.append([])
        self._back.append([])
        return len(self._onward) - 1

    def edge(self, tail: int, head: int, capacity: int | None = None) -> None:
        """A new edge; without a capacity it may not be cut."""
        self._onward[tail].append(len(self._heads))
        self._back[head].append(len(self._heads) + 1)
        self._heads.extend((head, tail))
        self._capacities += (capacity, 0)

    def cut(self, source: int, sink: int) -> tuple[int, list[bool]]:
        """The least capacity that parts two nodes, and by node whether it is on the sink's side.

        Of several least cuts it is the one next to the sink, which is unique: the order of nodes and edges
        does not matter.

        Raises:
            Unbounded: edges that may not be cut lead all the way.
        """
        endless = 1 + sum(capacity for capacity in self._capacities if capacity is not None)
        left = [endless if capacity is None else capacity for capacity in self._capacities]
        # flow rather goes on than back, or it would be handed to and fro
        edges = [onward + back for onward, back in zip(self._onward, self._back, strict=True)]
        flow = _Preflow(edges, self._heads, left, source, sink)
        flow.run()
        total = flow.excess[sink]
        if total >= endless:
            raise Unbounded
        # only what can't get on is left, so that what reaches the sink is the sink's side of the cut
        return total, [height < flow.top for height in flow.distances()]


class _Preflow:
    """Flow of which nodes may have got more than they gave.

    Attributes:
        left: by edge, what more can flow there.
        excess: by node, what it got and did not give.
        heights: by node, at most its distance to the sink, in edges that are not full; flow falls by 1.
        top: the height of nodes from where nothing reaches the sink.
    """

    def __init__(
        self, edges: list[list[int]], heads: array[int], left: list[int], source: int, sink: int
    ) -> None:
        self._edges, self._heads, self.left, self._sink = edges, heads, left, sink
        self.top = len(edges)
        self.excess = [0] * self.top
        for edge in edges[source]:
            amount, left[edge] = left[edge], 0
            left[edge ^ 1] += amount
            self.excess[heads[edge]] += amount
        self._source = source
        self._relabelled = 0
        self._level()

    def distances(self) -> list[int]:
        """By node, the distance to the sink."""
        found = [self.top] * self.top
        found[self._sink] = 0
        rim = [self._sink]
        while rim:
            after = []
            for node in rim:
                distance = found[node] + 1
                for edge in self._edges[node]:
                    tail = self._heads[edge]
                    if self.left[edge ^ 1] and found[tail] == self.top and tail != self._source:
                        found[tail] = distance
                        after.append(tail)
            rim = after
        return found

    def _level(self) -> None:
        """Let heights be true distances again."""
        self.heights = heights = self.distances()
        self._current = [0] * self.top  # by node, edges that lead down come no earlier
        self._active: list[list[int]] = [[] for _ in range(self.top)]  # by height, nodes with excess
        self._levels: list[list[int]] = [[] for _ in range(self.top)]  # by height, nodes that came there
        self._count = [0] * (self.top + 1)
        for node, height in enumerate(heights):
            self._count[height] += 1
            if height < self.top:
                self._levels[height].append(node)
                if self.excess[node] and node != self._sink:
                    self._active[height].append(node)
        self._highest = self.top - 1

    def run(self) -> None:
        """Let all flow on that can."""
        while self._highest > 0:
            active = self._active[self._highest]
            if not active:
                self._highest -= 1
                continue
            node = active.pop()
            if self.heights[node] == self._highest and self.excess[node]:
                self._discharge(node)
                if self._relabelled > self.top:
                    self._relabelled = 0
                    self._level()

    def _discharge(self, node: int) -> None:
        """Let all that ``node`` has too much flow down, raising it if need be."""
        edges, heads, left = self._edges[node], self._heads, self.left
        excess, heights = self.excess, self.heights
        while excess[node]:
            below = heights[node] - 1
            place = self._current[node]
            while place < len(edges):
                edge = edges[place]
                head = heads[edge]
                if left[edge] and heights[head] == below:
                    amount = min(left[edge], excess[node])
                    left[edge] -= amount
                    left[edge ^ 1] += amount
                    excess[node] -= amount
                    if not excess[head] and head != self._sink:
                        self._active[below].append(head)
                    excess[head] += amount
                    if not excess[node]:
                        break
                else:
                    place += 1
            self._current[node] = place
            if excess[node]:
                self._raise(node)
                if heights[node] >= self.top:
                    return

    def _raise(self, node: int) -> None:
        """Raise ``node`` above the lowest node that flow can get to."""
        heights, old = self.heights, self.heights[node]
        self._relabelled += 1
        self._count[old] -= 1
        found = min(
            (heights[self._heads[edge]] + 1 for edge in self._edges[node] if self.left[edge]),
            default=self.top,
        )
        if not self._count[old]:  # nobody is there any more through whom those above could reach the sink
            found = self.top
            for height in range(old + 1, self.top):
                if not self._count[height]:
                    break
                for other in self._levels[height]:
                    if heights[other] == height:
                        heights[other] = self.top
                self._count[height] = 0
        heights[node] = found = min(found, self.top)
        self._current[node] = 0
        self._count[found] += 1
        if found < self.top:
            self._levels[found].append(node)
            self._highest = max(self._highest, found)
