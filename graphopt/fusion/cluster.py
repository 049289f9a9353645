"""Which nodes are computed in one nest of loops.

Nodes are placed from the last to the first. A node joins the nest of those that read it, where its result is
demanded there in a way that it can follow; otherwise it begins a nest of its own. Nests have an order, in
which no edge leads back: a node may only join the first of those that read it, and a new nest comes before
all. What is read elsewhere, too, is written to memory by the nest that computes it. Nests that read the same
value become one where they loop over the same elements, and nothing that one of them needs is computed in
between.

The scheme is that of Inductor's scheduler (``torch/_inductor/scheduler.py``), with an order in the place of
its search for cycles.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from graphopt import ir
from graphopt.context import Context
from graphopt.fusion.loop_nest import CantFuse, Map, Nest
from graphopt.fusion.operator_table import At, Operator, find

#: Nodes of one nest: longer kernels take long to compile, and gain nothing.
_MOST_NODES = 96


@dataclass(eq=False)
class Planned:
    """Nodes that are computed in one nest.

    Attributes:
        order: of two nests, that with the lower order is computed first.
        nest: the loops; ``None`` where a node can't be computed in loops.
        nodes: last ones first, while nodes are placed; then in the order of the graph.
        why: why it is not part of those that read it.
    """

    order: int
    nest: Nest | None
    nodes: list[ir.Node] = field(default_factory=list)
    why: str = ""

    @property
    def leaves(self) -> list[ir.Value]:
        """The values that are read, and not computed here."""
        assert self.nest is not None
        made = {output for node in self.nodes for output in node.outputs}
        return [value for value in self.nest.demands if value not in made]


def plan(nodes: Sequence[ir.Node], cx: Context, outside: Sequence[ir.Value] = ()) -> list[Planned]:
    """The nests that ``nodes``, in the order of their graph, are computed in, in an order to run them.

    Args:
        outside: values that are wanted besides those that others read, or the graph returns.
    """
    return _Planner(nodes, cx, outside).run()


class _Planner:
    def __init__(self, nodes: Sequence[ir.Node], cx: Context, outside: Sequence[ir.Value]) -> None:
        self._nodes = nodes
        self._cx = cx
        self._outside = dict.fromkeys(outside)
        self._place_of = {node: -number for number, node in enumerate(nodes)}
        self._lowest = 0
        self._placed: dict[ir.Node, Planned] = {}
        self._planned: dict[Planned, None] = {}

    def run(self) -> list[Planned]:
        for node in reversed(self._nodes):
            self._place(node)
        for found in self._planned:
            found.nodes.reverse()
        return sorted(self._planned, key=lambda found: found.order)

    def _place(self, node: ir.Node) -> None:
        readers = dict.fromkeys(
            self._placed[reader]
            for output in node.outputs
            for reader in ir.readers(output)
            if reader in self._placed
        )
        why = ""
        if readers:
            first, *others = sorted(readers, key=lambda found: found.order)
            try:
                self._join(node, first, others)
                return
            except CantFuse as reason:
                why = str(reason)
        self._begin(node, why)

    def _begin(self, node: ir.Node, why: str) -> None:
        order = self._lowest = self._lowest - 1
        nest: Nest | None = Nest(self._cx.facts)
        assert nest is not None
        try:
            wanted = [output for output in node.outputs if output.name and self._is_wanted(output, None)]
            if not wanted:
                raise CantFuse("nothing reads what it computes")
            nest.begin(wanted[0])
            self._read(node, nest, None)
        except CantFuse as reason:
            nest, why = None, str(reason)
        found = Planned(order, nest, [node], why)
        self._planned[found] = None
        self._placed[node] = found

    def _join(self, node: ir.Node, first: Planned, others: Sequence[Planned]) -> None:
        """Compute ``node`` in the nest ``first``, and with it what ``others`` do, as far as that can be."""
        if first.nest is None:
            raise CantFuse(f"it is read by a node that is not computed in loops: {first.why}")
        if len(first.nodes) >= _MOST_NODES:
            raise CantFuse(f"a group has at most {_MOST_NODES} nodes")
        nest = first.nest.copy()
        merged: list[Planned] = []
        for other in others:
            together = self._merged(node, nest, first, other, merged)
            if together is not None:
                nest = together
                merged.append(other)
        inside = [first, *merged]
        self._read(node, nest, inside)
        first.nest = nest
        for other in merged:
            for moved in other.nodes:
                self._placed[moved] = first
            del self._planned[other]
        if merged:
            members = [member for found in inside for member in found.nodes]
            first.nodes = sorted(members, key=self._place_of.__getitem__)
            self._drop_stores(first)
        first.nodes.append(node)
        self._placed[node] = first

    def _merged(
        self, node: ir.Node, nest: Nest, first: Planned, other: Planned, merged: Sequence[Planned]
    ) -> Nest | None:
        """``nest`` with what ``other`` computes; ``None`` if they can't be one."""
        size = sum(len(found.nodes) for found in (first, other, *merged))
        if other.nest is None or size >= _MOST_NODES:
            return None
        for leaf in other.leaves:  # what it needs has to be there before
            producer = leaf.producer()
            feeder = None if producer is None else self._placed.get(producer)
            if feeder is not None and feeder not in (first, *merged) and feeder.order > first.order:
                return None
        shared = [value for value in node.outputs if value in nest.demands and value in other.nest.demands]
        together = nest.copy()
        if not shared:
            return None
        try:
            together.absorb(other.nest, shared[0])
        except CantFuse:
            return None
        return together

    def _drop_stores(self, found: Planned) -> None:
        """Write no more to memory what is read inside alone."""
        assert found.nest is not None
        for value in list(found.nest.stores):
            if not self._is_wanted(value, [found]):
                del found.nest.stores[value]

    def _read(self, node: ir.Node, nest: Nest, inside: Sequence[Planned] | None) -> None:
        operator = find(node)
        if operator is None:
            raise CantFuse("kernels do not know the operator")
        for index, output in enumerate(node.outputs):
            if output.name and self._is_wanted(output, inside):
                nest.store(output)
            for value, at in reads(operator, At(node, self._cx, nest, index, ()), output):
                nest.demand(value, at)

    def _is_wanted(self, value: ir.Value, inside: Sequence[Planned] | None) -> bool:
        """Whether ``value`` is read by others than the nests ``inside``."""
        if value.is_graph_output() or value in self._outside:
            return True
        return any(self._placed.get(reader) not in (inside or ()) for reader in ir.readers(value))


def reads(operator: Operator, at: At, output: ir.Value) -> Iterator[tuple[ir.Value, Map]]:
    """What is read of a node's inputs for ``output``, wherever that is demanded."""
    for where in at.nest.maps(output):
        for item in operator.reads(At(at.node, at.cx, at.nest, at.output, where)):
            if item is not None:
                yield item
