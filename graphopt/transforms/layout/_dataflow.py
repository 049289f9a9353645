"""The tensors of a graph with its bodies, the sites that read and write them, and their layouts.

Transposes are not sites: a tensor and its transposed versions are one :class:`Tensor`. The layouts in which
it is written and read determine the Transposes that remain.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field

from graphopt import ir
from graphopt.analysis.shape_inference.node_facts import UnknownAttribute
from graphopt.analysis.symbolic import typical_size
from graphopt.context import Context
from graphopt.numerics import Numerics
from graphopt.rewrite.match import Match, Refused
from graphopt.rules.building_blocks.axes import perm_of
from graphopt.rules.building_blocks.transpose_propagation import is_cheap
from graphopt.transforms.layout._operator import Operator, SameRank
from graphopt.transforms.layout._permutations import Perm, Placement, compose, identity
from graphopt.util.lazy_dataclass import dataclass

#: The name of the pass, for reasons and records.
NAME = "layout"
#: The cost of a Transpose besides its bytes, in bytes: the call of a kernel.
_CALL = 512
#: The number of iterations assumed for a loop.
_ITERATIONS, _DEEPEST = 8, 3


@dataclass(frozen=True)
class Use:
    """An input of a node, or an output of a graph."""

    place: ir.Node | ir.Graph
    index: int

    @property
    def graph(self) -> ir.Graph:
        """The graph that reads the value."""
        if isinstance(self.place, ir.Node):
            assert self.place.graph is not None
            return self.place.graph
        return self.place

    @property
    def value(self) -> ir.Value | None:
        """The value that is read."""
        return (self.place.inputs if isinstance(self.place, ir.Node) else self.place.outputs)[self.index]


class Site(ABC):
    """A node, or a part of one, whose tensors may have other layouts.

    Attributes:
        node: the node.
        reads: the uses of the tensors that it reads in one layout.
        results: the values that it writes in one layout.
        own: the layouts of the model.
    """

    node: ir.Node
    reads: Sequence[Use]
    results: Sequence[ir.Value]
    own: Placement

    @abstractmethod
    def placement(self, perm: Perm, *, given: str) -> Placement | None:
        """The layouts if that of its operands (``given="read"``) or results (``"result"``) is ``perm``."""

    def penalty(self, at: Placement) -> int:
        """The cost of the layouts ``at`` in the site itself, in passes over the data."""
        return 0


@dataclass(eq=False)
class NodeSite(Site):
    """A node that can be rebuilt in another layout."""

    node: ir.Node
    operator: Operator
    m: Match
    reads: Sequence[Use]
    results: Sequence[ir.Value]
    own: Placement

    def placement(self, perm: Perm, *, given: str) -> Placement | None:
        try:
            return self.operator.placement(self.m, self.node, perm, given=given)
        except (Refused, UnknownAttribute):
            return None

    def penalty(self, at: Placement) -> int:
        return self.operator.penalty(self.m, self.node, at)


@dataclass(frozen=True)
class Reading:
    """One use of a tensor.

    Attributes:
        perm: the permutation of the value that is read, relative to the tensor.
        site: the site that reads it; ``None`` if its layout does not change.
    """

    use: Use
    perm: Perm
    site: Site | None


@dataclass(eq=False)
class Tensor:
    """A value, with the values that Transposes compute from it.

    Attributes:
        root: the value that is not the result of a Transpose.
        graph: the graph in which the root is defined.
        rank: its number of dims.
        writer: the site that writes it; ``None`` if its layout does not change.
        cost: the cost of a Transpose, in bytes.
        view_cost: the cost of any node that changes the layout, even if it moves nothing.
        aliases: the results of Transposes of the root, directly or through others, with their permutations.
        readings: its uses, except by these Transposes.
        is_rigid: whether its writer and readers may only change their layout together.
    """

    root: ir.Value
    graph: ir.Graph
    rank: int
    writer: Site | None = None
    cost: int = 0
    view_cost: int = 0
    aliases: dict[ir.Value, Perm] = field(default_factory=dict)
    readings: list[Reading] = field(default_factory=list)
    is_rigid: bool = False


@dataclass
class Dataflow:
    """Tensors and sites of a graph and its bodies.

    Attributes:
        tensors: by root, in the order of definition.
        tensor_of: the tensor of each value of a known rank.
        sites: in the order of their nodes.
        order: the position of each node.
    """

    cx: Context
    root: ir.Graph
    tensors: dict[ir.Value, Tensor] = field(default_factory=dict)
    tensor_of: dict[ir.Value, tuple[Tensor, Perm]] = field(default_factory=dict)
    sites: list[Site] = field(default_factory=list)
    order: dict[ir.Node, int] = field(default_factory=dict)

    @classmethod
    def of(cls, graph: ir.Graph, cx: Context, sites_of: Callable[[ir.Node], Iterable[Site]]) -> Dataflow:
        """The dataflow of ``graph``.

        Args:
            sites_of: the sites of a node.
        """
        found = cls(cx, graph)
        found._define(sites_of)
        found._read()
        return found

    def _define(self, sites_of: Callable[[ir.Node], Iterable[Site]]) -> None:
        depth = {self.root: 0}
        writers: dict[ir.Value, Site] = {}
        for kind, graph, node in ir.in_order(self.root):
            if kind == "enter":
                if node is not None:
                    assert node.graph is not None
                    depth[graph] = depth[node.graph] + (node.op_type != "If")
                for value in dict.fromkeys([*graph.inputs, *graph.initializers.values()]):
                    self._add(value, graph, depth[graph], writers)
            elif kind == "read" and node is not None:
                self.order[node] = len(self.order)
                for site in sites_of(node):
                    self.sites.append(site)
                    writers |= dict.fromkeys(site.results, site)
            elif kind == "define" and node is not None:
                source = self._transposed(node)
                if source is not None:
                    tensor, perm = source
                    tensor.aliases[node.outputs[0]] = perm
                    self.tensor_of[node.outputs[0]] = tensor, perm
                    continue
                for value in node.outputs:
                    self._add(value, graph, depth[graph], writers)

    def _add(self, value: ir.Value, graph: ir.Graph, depth: int, writers: dict[ir.Value, Site]) -> None:
        rank = self.cx.rank(value)
        if rank is None or not value.name:
            return
        size = self.cx.facts.nbytes(value)
        typical = None if size is None else typical_size(size)
        weight = _ITERATIONS ** min(depth, _DEEPEST)
        moved = weight * max(typical or 0, 1)
        tensor = Tensor(value, graph, rank, writers.get(value), moved, weight * _CALL)
        if ir.constant_of(value) is not None:
            reader = next(ir.readers(value), None)
            if reader is not None and is_cheap(Match(NAME, reader, {}, self.cx), value):
                tensor.cost = tensor.view_cost = 0  # transposed ahead of time
        self.tensors[value] = tensor
        self.tensor_of[value] = tensor, identity(rank)

    def _transposed(self, node: ir.Node) -> tuple[Tensor, Perm] | None:
        """The tensor that the Transpose ``node`` transposes, and the permutation of the result."""
        if node.op_type != "Transpose" or node.domain != "" or node.inputs[0] is None:
            return None
        perm, source = perm_of(Match(NAME, node, {}, self.cx), node), self.tensor_of.get(node.inputs[0])
        return None if perm is None or source is None else (source[0], compose(source[1], perm))

    def _read(self) -> None:
        owner = {use: site for site in self.sites for use in site.reads}
        for kind, graph, node in ir.in_order(self.root):
            if kind == "read" and node is not None:
                if node.outputs and self.is_alias(node.outputs[0]):
                    continue
                for index, value in enumerate(node.inputs):
                    self._note(value, Use(node, index), owner)
            elif kind == "leave":
                for index, value in enumerate(graph.outputs):
                    self._note(value, Use(graph, index), owner)

    def _note(self, value: ir.Value | None, use: Use, owner: dict[Use, Site]) -> None:
        known = None if value is None else self.tensor_of.get(value)
        if known is not None:
            known[0].readings.append(Reading(use, known[1], owner.get(use)))

    def is_alias(self, value: ir.Value) -> bool:
        """Whether ``value`` is the result of a Transpose."""
        known = self.tensor_of.get(value)
        return known is not None and known[0].root is not value


def node_site(node: ir.Node, operator: Operator | None, cx: Context) -> NodeSite | None:
    """The site of ``node``; ``None`` if its layout can't change."""
    if operator is None or node.overload or node.op_identifier() in cx.model.functions:
        return None
    if not operator.exact and cx.options.numerics is Numerics.EXACT:
        return None
    m = Match(NAME, node, {}, cx)
    results = [value for value in node.outputs if value.name]
    try:
        reads = [Use(node, index) for index in operator.reads(m, node)]
    except (Refused, UnknownAttribute):
        return None
    ranks = [cx.rank(node.inputs[use.index]) for use in reads], [cx.rank(value) for value in results]
    first = ranks[0][:1], ranks[1][:1]
    if not reads or not results or None in (*ranks[0], *ranks[1]):
        return None
    if any(rank != kind[0] for kind, all_ in zip(first, ranks, strict=True) for rank in all_):
        return None
    own = Placement(identity(first[0][0] or 0), identity(first[1][0] or 0))
    if isinstance(operator, SameRank) and own.read != own.result:
        return None
    return NodeSite(node, operator, m, reads, results, own)
