"""Choose the layout of each site, so that the remaining Transposes move the fewest bytes.

Sites are moved to other layouts by expansion moves, as in Y. Boykov, O. Veksler, R. Zabih, "Fast approximate
energy minimization via graph cuts" (2001): a move proposes one layout for each tensor that is connected to a
Transpose, and a minimum cut selects the sites that adopt it. Each move is optimal, and is applied only if
the cost decreases, so that the result never moves more bytes than the model.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field

from graphopt.transforms.layout._dataflow import Dataflow, Reading, Site, Tensor
from graphopt.transforms.layout._permutations import Perm, Placement, after, compose, identity, significant
from graphopt.util.lazy_dataclass import dataclass
from graphopt.util.min_cut import Network

#: Maximum number of rounds of moves, and of proposed layouts for each tensor, which keep the time linear.
_ROUNDS, _WORK = 4, 32

Layouts = Mapping[Site, Placement]


@dataclass
class Assignment:
    """The layouts of all sites.

    Attributes:
        at: the layouts of sites that differ from the model's.
        biases: the cost of each site in the layouts of the model.
    """

    flow: Dataflow
    at: dict[Site, Placement] = field(default_factory=dict)
    biases: Mapping[Site, int] = field(default_factory=dict)

    def placement(self, site: Site, proposed: Layouts | None = None) -> Placement:
        """The layouts of ``site``, or the ``proposed`` ones."""
        found = None if proposed is None else proposed.get(site)
        return found or self.at.get(site, site.own)

    def written(self, tensor: Tensor, proposed: Layouts | None = None) -> Perm:
        """The layout in which ``tensor`` is written."""
        if tensor.writer is None:
            return identity(tensor.rank)
        return self.placement(tensor.writer, proposed).result

    def required(self, reading: Reading, proposed: Layouts | None = None) -> Perm:
        """The layout that ``reading`` requires of the tensor."""
        if reading.site is None:
            return reading.perm
        return compose(reading.perm, self.placement(reading.site, proposed).read)

    def of_sites(self, sites: Iterable[Site]) -> Assignment:
        """The layouts of ``sites``; other sites have those of the model."""
        return Assignment(self.flow, {site: self.at[site] for site in sites}, self.biases)

    def cost(self, tensors: Iterable[Tensor], sites: Iterable[Site], proposed: Layouts | None = None) -> int:
        """The cost of the Transposes of ``tensors``, and of the layouts of ``sites`` themselves."""
        total = 0
        for tensor in tensors:
            shape, written = self.flow.cx.shape(tensor.root), self.written(tensor, proposed)
            required = dict.fromkeys(self.required(reading, proposed) for reading in tensor.readings)
            moved = dict.fromkeys(significant(perm, shape) for perm in required)
            total += tensor.cost * sum(perm != significant(written, shape) for perm in moved)
            total += tensor.view_cost * sum(perm != written for perm in required)
        return total + sum(self.penalty(site, self.placement(site, proposed)) for site in sites)

    def penalty(self, site: Site, at: Placement) -> int:
        """The cost of the layouts ``at`` of ``site`` itself."""
        bias = self.biases.get(site, 0) if at == site.own else 0
        passes = site.penalty(at)
        if not passes:
            return bias
        known = self.flow.tensor_of.get(site.results[0]) if site.results else None
        return bias + (0 if known is None else passes * known[0].cost)


@dataclass
class Move:
    """A proposal of layouts.

    Attributes:
        layouts: for each tensor that it reaches, in order.
        proposed: for each site whose layouts would change, in order.
    """

    layouts: dict[Tensor, Perm] = field(default_factory=dict)
    proposed: dict[Site, Placement] = field(default_factory=dict)


def choose_layouts(flow: Dataflow, biases: Mapping[Site, int] | None = None) -> Assignment:
    """The layouts for which the Transposes of ``flow`` move the fewest bytes, found by expansion moves.

    Args:
        flow: tensors and sites.
        biases: the cost of the layouts of the model, for sites that prefer another layout.
    """
    chosen = Assignment(flow, biases=biases or {})
    around = _Neighbours.of(flow)
    work = _WORK * len(flow.tensors)
    for _ in range(_ROUNDS):
        tried: dict[tuple[Tensor, Perm], None] = {}
        improved = False
        for seed in list(_seeds(chosen, around)):
            if seed in tried or work <= 0:
                continue
            move = _expand(seed, chosen, around)
            tried |= dict.fromkeys(move.layouts.items())
            work -= len(move.layouts)
            accepted = _cut(move, chosen)
            chosen.at |= accepted
            improved |= bool(accepted)
        if not improved:
            break
    return chosen


@dataclass
class _Neighbours:
    """The tensors that each site reads, with the permutations of the values, and writes."""

    reads: dict[Site, list[tuple[Tensor, Perm]]]
    results: dict[Site, list[Tensor]]

    @classmethod
    def of(cls, flow: Dataflow) -> _Neighbours:
        found = cls({site: [] for site in flow.sites}, {site: [] for site in flow.sites})
        for tensor in flow.tensors.values():
            if tensor.writer is not None:
                found.results[tensor.writer].append(tensor)
            for reading in tensor.readings:
                if reading.site is not None:
                    found.reads[reading.site].append((tensor, reading.perm))
        return found


def _seeds(chosen: Assignment, around: _Neighbours) -> Iterator[tuple[Tensor, Perm]]:
    """Layouts that would remove a Transpose, or suit a site with a bias."""
    for tensor in chosen.flow.tensors.values():
        if not tensor.cost:
            continue
        written = chosen.written(tensor)
        others = dict.fromkeys(chosen.required(reading) for reading in tensor.readings)
        differing = [perm for perm in others if perm != written]
        for perm in differing:
            yield tensor, perm
        if differing:
            yield tensor, written
    for site, bias in chosen.biases.items():
        if bias and chosen.placement(site) == site.own:
            yield from ((tensor, perm) for tensor in around.results[site] for perm in _preferred(site))


def _preferred(site: Site) -> Iterator[Perm]:
    """The layout with the channels last, if ``site`` supports it."""
    rank = len(site.own.result)
    perm = (0, *range(2, rank), 1)
    if rank > 2 and site.placement(perm, given="result") is not None:
        yield perm


def _expand(seed: tuple[Tensor, Perm], chosen: Assignment, around: _Neighbours) -> Move:
    """Propagate the layout of ``seed`` through all sites that support it."""
    move, pending, visited = Move({seed[0]: seed[1]}), deque([seed[0]]), dict[Site, None]()
    while pending:
        tensor = pending.popleft()
        layout = move.layouts[tensor]
        sites = [] if tensor.writer is None else [(tensor.writer, layout, "result")]
        sites += [(r.site, after(r.perm, layout), "read") for r in tensor.readings if r.site is not None]
        for site, perm, given in sites:
            if site in visited:
                continue
            at = site.placement(perm, given=given)
            if at is None:
                continue
            visited[site] = None
            if at != chosen.placement(site):
                move.proposed[site] = at
            reached = [(other, compose(alias, at.read)) for other, alias in around.reads[site]]
            reached += [(other, at.result) for other in around.results[site]]
            for other, other_layout in reached:
                if other not in move.layouts:
                    move.layouts[other] = other_layout
                    pending.append(other)
    return move


def _cut(move: Move, chosen: Assignment) -> dict[Site, Placement]:
    """The sites for which ``move`` decreases the cost, with their layouts; empty if there are none."""
    if not move.proposed:
        return {}
    network = Network()
    source, sink = network.node(), network.node()
    nodes = {site: network.node() for site in move.proposed}
    cut = _Cut(network, source, sink, nodes, move, chosen)
    for site, at in move.proposed.items():
        cut.pay_if_moved(nodes[site], chosen.penalty(site, at))
        cut.pay_if_stays(nodes[site], chosen.penalty(site, chosen.placement(site)))
    for tensor in move.layouts:
        cut.add(tensor)
    _, moved = network.cut(source, sink)
    accepted = {site: at for site, at in move.proposed.items() if moved[nodes[site]]}
    before = chosen.cost(move.layouts, accepted)
    return accepted if accepted and chosen.cost(move.layouts, accepted, accepted) < before else {}


@dataclass
class _Cut:
    """The network of one move: sites on the side of ``sink`` adopt the proposed layouts."""

    network: Network
    source: int
    sink: int
    nodes: Mapping[Site, int]
    move: Move
    chosen: Assignment

    def pay_if_moved(self, node: int, cost: int) -> None:
        if cost:
            self.network.edge(self.source, node, cost)

    def pay_if_stays(self, node: int, cost: int) -> None:
        if cost:
            self.network.edge(node, self.sink, cost)

    def add(self, tensor: Tensor) -> None:
        """Add the cost of the Transposes of ``tensor``."""
        if tensor.is_rigid:
            self._tie(tensor)
            return
        if not tensor.cost:
            return
        readers = self._readers(tensor)
        now, then = self.chosen.written(tensor), self.chosen.written(tensor, self.move.proposed)
        writer = None if tensor.writer is None or now == then else self.nodes.get(tensor.writer)
        shape = self.chosen.flow.cx.shape(tensor.root)
        in_order = {perm: significant(perm, shape) for perm in (*readers, now, then)}
        for layout, who in readers.items():
            kind, cost = in_order, tensor.cost + tensor.view_cost
            if in_order[layout] == in_order[now] == in_order[then]:
                kind, cost = {perm: perm for perm in in_order}, tensor.view_cost
            if kind[layout] == kind[now] == kind[then]:
                continue
            if kind[layout] == kind[now]:
                self._written_if_stays(cost, writer, who)
            elif kind[layout] == kind[then]:
                self._written_if_moved(cost, writer, who)
            else:
                self._any_stays(who.staying, self.sink, cost)
                self._any_moved(who.moved, self.source, cost)

    def _readers(self, tensor: Tensor) -> dict[Perm, _Readers]:
        """The readers of ``tensor``, by the layout that they read."""
        found: dict[Perm, _Readers] = {}
        for reading in tensor.readings:
            now = self.chosen.required(reading)
            then = self.chosen.required(reading, self.move.proposed)
            node = None if reading.site is None else self.nodes.get(reading.site)
            if now == then or node is None:
                found.setdefault(now, _Readers()).always = True
            else:
                found.setdefault(now, _Readers()).staying.append(node)
                found.setdefault(then, _Readers()).moved.append(node)
        return found

    def _written_if_stays(self, cost: int, writer: int | None, who: _Readers) -> None:
        """The cost of a layout in which the tensor is written only if the writer stays."""
        assert writer is not None
        if who.always:
            self.pay_if_moved(writer, cost)
        else:
            self._any_stays(who.staying, writer, cost)
        self._any_moved(who.moved, self.source, cost)  # an upper bound

    def _written_if_moved(self, cost: int, writer: int | None, who: _Readers) -> None:
        """The cost of a layout in which the tensor is written only if the writer moves."""
        assert writer is not None
        if who.always:
            self.pay_if_stays(writer, cost)
        else:
            self._any_moved(who.moved, writer, cost)
        self._any_stays(who.staying, self.sink, cost)  # an upper bound

    def _any_stays(self, readers: Sequence[int], other: int, cost: int) -> None:
        """Pay if one of ``readers`` stays and ``other`` moves."""
        if readers:
            node = self.network.node()
            for reader in readers:
                self.network.edge(reader, node)
            self.network.edge(node, other, cost)

    def _any_moved(self, readers: Sequence[int], other: int, cost: int) -> None:
        """Pay if one of ``readers`` moves and ``other`` stays."""
        if readers:
            node = self.network.node()
            for reader in readers:
                self.network.edge(node, reader)
            self.network.edge(other, node, cost)

    def _tie(self, tensor: Tensor) -> None:
        """Let the writer and readers of ``tensor`` only move together."""
        sites = [tensor.writer, *(reading.site for reading in tensor.readings)]
        nodes = [self.source if site is None else self.nodes.get(site, self.source) for site in sites]
        for node in nodes[1:]:
            if node != nodes[0]:
                self.network.edge(nodes[0], node)
                self.network.edge(node, nodes[0])


@dataclass
class _Readers:
    """The readers of a tensor that read one layout: always, if they stay, or if they move."""

    always: bool = False
    staying: list[int] = field(default_factory=list)
    moved: list[int] = field(default_factory=list)
