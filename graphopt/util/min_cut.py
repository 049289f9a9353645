"""Minimum cuts of networks with integer capacities, by the push-relabel algorithm.

A. V. Goldberg and R. E. Tarjan, "A new approach to the maximum-flow problem" (1988), with highest-label
selection, the gap heuristic and global relabelling. On a long chain, the algorithm pushes the flow from many
nodes together; augmenting-path algorithms such as Dinic's take quadratic time. Python's ints represent
capacities exactly.
"""

from __future__ import annotations

from array import array


class Unbounded(Exception):
    """Every cut contains an edge of unlimited capacity."""


class Network:
    """A directed network, built node by node and edge by edge.

    >>> network = Network()
    >>> a, b, c = (network.node() for _ in range(3))
    >>> network.edge(a, b, 3)
    >>> network.edge(b, c, 2)
    >>> network.cut(a, c)
    (2, [False, False, True])
    """

    def __init__(self) -> None:
        self._onward: list[list[int]] = []  # the outgoing edges of each node; edge ^ 1 is the residual edge
        self._back: list[list[int]] = []  # the outgoing residual edges of each node
        self._heads = array("q")
        self._capacities: list[int | None] = []

    def node(self) -> int:
        """Add a node; returns its number, from 0."""
        self._onward.append([])
        self._back.append([])
        return len(self._onward) - 1

    def edge(self, tail: int, head: int, capacity: int | None = None) -> None:
        """Add an edge; ``None`` is unlimited capacity."""
        self._onward[tail].append(len(self._heads))
        self._back[head].append(len(self._heads) + 1)
        self._heads.extend((head, tail))
        self._capacities += (capacity, 0)

    def cut(self, source: int, sink: int) -> tuple[int, list[bool]]:
        """The capacity of a minimum cut, and for each node whether it is on the sink's side.

        Among several minimum cuts, the result is the one nearest to the sink. This cut is unique, so the
        order of nodes and edges does not matter.

        Raises:
            Unbounded: a path of edges with unlimited capacity leads from source to sink.
        """
        unlimited = 1 + sum(capacity for capacity in self._capacities if capacity is not None)
        residual = [unlimited if capacity is None else capacity for capacity in self._capacities]
        # forward edges first: otherwise flow would be pushed back and forth
        edges = [onward + back for onward, back in zip(self._onward, self._back, strict=True)]
        flow = _Preflow(edges, self._heads, residual, source, sink)
        flow.run()
        total = flow.excess[sink]
        if total >= unlimited:
            raise Unbounded
        # the sink's side: the nodes from which the sink can still be reached
        return total, [height < flow.top for height in flow.distances()]


class _Preflow:
    """A preflow: nodes may receive more flow than they send.

    Attributes:
        residual: the residual capacity of each edge.
        excess: flow received minus flow sent, for each node.
        heights: a lower bound of each node's distance to the sink in the residual network, in edges; flow is
            pushed to nodes whose height is lower by one.
        top: the height of nodes that can't reach the sink.
    """

    def __init__(
        self, edges: list[list[int]], heads: array[int], residual: list[int], source: int, sink: int
    ) -> None:
        self._edges, self._heads, self.residual, self._sink = edges, heads, residual, sink
        self.top = len(edges)
        self.excess = [0] * self.top
        for edge in edges[source]:
            amount, residual[edge] = residual[edge], 0
            residual[edge ^ 1] += amount
            self.excess[heads[edge]] += amount
        self._source = source
        self._relabelled = 0
        self._relabel_all()

    def distances(self) -> list[int]:
        """The distance of each node to the sink in the residual network, by breadth-first search."""
        found = [self.top] * self.top
        found[self._sink] = 0
        frontier = [self._sink]
        while frontier:
            after = []
            for node in frontier:
                distance = found[node] + 1
                for edge in self._edges[node]:
                    tail = self._heads[edge]
                    if self.residual[edge ^ 1] and found[tail] == self.top and tail != self._source:
                        found[tail] = distance
                        after.append(tail)
            frontier = after
        return found

    def _relabel_all(self) -> None:
        """Global relabelling: set heights to the exact distances."""
        self.heights = heights = self.distances()
        self._current = [0] * self.top  # the first edge of each node that may be admissible
        self._active: list[list[int]] = [[] for _ in range(self.top)]  # the nodes with excess, by height
        self._levels: list[list[int]] = [[] for _ in range(self.top)]  # present and former nodes, by height
        self._count = [0] * (self.top + 1)
        for node, height in enumerate(heights):
            self._count[height] += 1
            if height < self.top:
                self._levels[height].append(node)
                if self.excess[node] and node != self._sink:
                    self._active[height].append(node)
        self._highest = self.top - 1

    def run(self) -> None:
        """Push flow until no node that can reach the sink has excess."""
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
                    self._relabel_all()

    def _discharge(self, node: int) -> None:
        """Push all excess of ``node`` to lower nodes, relabelling it if necessary."""
        edges, heads, residual = self._edges[node], self._heads, self.residual
        excess, heights = self.excess, self.heights
        while excess[node]:
            below = heights[node] - 1
            position = self._current[node]
            while position < len(edges):
                edge = edges[position]
                head = heads[edge]
                if residual[edge] and heights[head] == below:
                    amount = min(residual[edge], excess[node])
                    residual[edge] -= amount
                    residual[edge ^ 1] += amount
                    excess[node] -= amount
                    if not excess[head] and head != self._sink:
                        self._active[below].append(head)
                    excess[head] += amount
                    if not excess[node]:
                        break
                else:
                    position += 1
            self._current[node] = position
            if excess[node]:
                self._relabel(node)
                if heights[node] >= self.top:
                    return

    def _relabel(self, node: int) -> None:
        """Raise ``node`` to one above its lowest neighbour in the residual network."""
        heights, old = self.heights, self.heights[node]
        self._relabelled += 1
        self._count[old] -= 1
        found = min(
            (heights[self._heads[edge]] + 1 for edge in self._edges[node] if self.residual[edge]),
            default=self.top,
        )
        if not self._count[old]:  # a gap: nodes above it can't reach the sink
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
