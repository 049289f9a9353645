"""Which values the forward pass saves for the backward pass: a minimum cut.

As in PyTorch's min_cut_rematerialization_partition, the network has an edge for each forward value, whose
capacity is the value's bytes; an edge that may not be cut from each operand of a node to what the node
computes; and such edges to the sink from what the backward pass reads. Where PyTorch weighs bytes by their
distance from the backward pass and bars what takes long, here a node costs what it costs: the source leads to
it by an edge of the weighed cost of computing it again, which may not be cut where that is not allowed. So
the least cut is the least sum of bytes saved and work done twice.
"""

from __future__ import annotations

from collections.abc import Iterable

from graphopt import ir
from graphopt.autodiff.min_cut import Network, Unbounded
from graphopt.autodiff.rematerialize import Estimates, is_compute_bound, recompute_obstacle
from graphopt.context import Context
from graphopt.errors import UnsupportedModel

#: Work counts 2 ** -halvings as much as bytes that are saved, by default ...
HALVINGS = 4
#: ... and at least.
_MOST_HALVINGS = 40
#: Of what is read of these, only the sizes are handed over.
_SIZES = ("Shape", "Size")


class JointPartition:
    """The nodes of a joint graph, by where they have to run.

    Attributes:
        nodes: all of them, in order.
        reads: what each reads, its bodies included.
        backward: those that depend on gradients that are given, or make an output that is a gradient.
        forward: those that the other outputs depend on. What is neither may run in either pass.
        wanted: what backward nodes read that others make, but for constants.
    """

    def __init__(self, graph: ir.Graph, cotangents: Iterable[str], gradients: Iterable[str]) -> None:
        self.nodes = list(graph)
        self.reads = {node: ir.reads(node) for node in self.nodes}
        names, given = frozenset(gradients), frozenset(cotangents)
        makers = {value.producer() for value in graph.outputs if value.name in names}
        dependent = dependents(graph, given)
        self.backward = {node: None for node in self.nodes if node in makers or node in dependent}
        carried = {value: None for node in self.backward for value in node.outputs}
        self.outputs = [value for value in graph.outputs if value.name not in names]
        self.forward = self.needed(self.outputs)
        self.wanted = dict.fromkeys(
            value
            for node in self.backward
            for value in self.reads[node]
            if value not in carried and not is_at_hand(value)
        )

    def needed(
        self, values: Iterable[ir.Value], given: dict[ir.Value, None] | None = None
    ) -> dict[ir.Node, None]:
        """The nodes that ``values`` depend on, where those in ``given`` are at hand."""
        given = given or {}
        found: dict[ir.Node, None] = {}
        pending = list(values)
        while pending:
            value = pending.pop()
            node = value.producer()
            if node is not None and node not in found and value not in given and not is_at_hand(value):
                found[node] = None
                pending.extend(self.reads[node])
        return found


def dependents(graph: ir.Graph, names: Iterable[str]) -> dict[ir.Node, None]:
    """The nodes that depend on the inputs called ``names``."""
    given = frozenset(names)
    carried = {value: None for value in graph.inputs if value.name in given}
    found: dict[ir.Node, None] = {}
    for node in graph:
        if any(value in carried for value in ir.reads(node)):
            found[node] = None
            carried.update(dict.fromkeys(node.outputs))
    return found


def is_at_hand(value: ir.Value) -> bool:
    """Whether both passes have ``value`` anyway: it is an input of the model, or constant."""
    return value.producer() is None or ir.constant_of(value) is not None


def all_residuals(sides: JointPartition) -> list[ir.Value]:
    """All forward values that are read in the backward pass, if that computes nothing again.

    Of what is read for its sizes alone, only these count.
    """
    early = dict(sides.forward)
    for node in sides.nodes:
        if node.op_type in _SIZES and not node.domain and node not in sides.backward:
            early |= sides.needed(node.outputs)
    late = sides.needed(sides.wanted, {value: None for node in early for value in node.outputs})
    read = [value for node in (*late, *sides.backward) for value in sides.reads[node]]
    found = {value: None for value in read if value.producer() in early and not is_at_hand(value)}
    return [value for node in sides.nodes for value in node.outputs if value in found]


class ResidualSelection:
    """Chooses what to save.

    Args:
        banned: values that are never handed over.
    """

    def __init__(
        self, sides: JointPartition, estimates: Estimates, cx: Context, banned: Iterable[ir.Value]
    ) -> None:
        self._sides = sides
        self._banned = dict.fromkeys(banned)
        needed = sides.needed(sides.wanted)
        self._nodes = [node for node in sides.nodes if node in needed]
        self._free = frozenset(sides.outputs)
        self._bytes = {out: self.size(out, estimates) for node in self._nodes for out in node.outputs}
        self._once = {node: None for node in self._nodes if self._is_bound(node, cx)}
        self._costs = {
            node: max(estimates.cost(node), 1) if node in sides.forward else 0 for node in self._nodes
        }

    def _is_bound(self, node: ir.Node, cx: Context) -> bool:
        """Whether ``node`` may run once only, and does so in the forward pass."""
        return (
            recompute_obstacle(node, cx) is not None
            if node in self._sides.forward
            else not cx.is_deterministic(node)
        )

    def size(self, value: ir.Value, estimates: Estimates) -> int:
        """The bytes of ``value``; nothing for what the model returns, which is there anyway."""
        return 0 if value in self._free else max(estimates.bytes(value), 1)

    def least(self, halvings: int = HALVINGS, *, heavy: bool = False) -> list[ir.Value]:
        """What to save where work counts 2 ** -halvings as much as bytes.

        Args:
            heavy: let operators that do much arithmetic be computed again, too.

        Raises:
            UnsupportedModel: something can neither be handed over nor be computed again.
        """
        network = Network()
        source, sink = network.node(), network.node()
        ends: dict[ir.Value, tuple[int, int]] = {}
        for node in self._nodes:
            place = network.node()
            once = node in self._once or (not heavy and self._costs[node] > 0 and is_compute_bound(node))
            cost = self._costs[node] << (_MOST_HALVINGS - halvings)
            if once or cost:
                network.edge(source, place, None if once else cost)
            for value in self._sides.reads[node]:
                if value in ends:
                    network.edge(ends[value][1], place)
            for value in node.outputs:
                made, handed = ends[value] = network.node(), network.node()
                network.edge(place, made)
                size = None if value in self._banned else self._bytes[value] << _MOST_HALVINGS
                network.edge(made, handed, size)
                if value in self._sides.wanted:
                    network.edge(handed, sink)
        try:
            _, late = network.cut(source, sink)
        except Unbounded:
            raise UnsupportedModel(
                "the model can't be split: a value of unknown type can't be handed to the backward pass"
            ) from None
        return [value for value, (made, handed) in ends.items() if late[handed] and not late[made]]

    def within(self, most: float) -> list[ir.Value]:
        """What to save where that may take ``most`` bytes, with little work; the least if all is more."""
        for heavy, low in ((False, HALVINGS), (True, 0)):
            high = _MOST_HALVINGS
            found = self.least(high, heavy=heavy)
            if self.total(found) > most:
                continue
            while low < high:  # bytes fall as work counts less
                middle = (low + high) // 2
                tried = self.least(middle, heavy=heavy)
                if self.total(tried) > most:
                    low = middle + 1
                else:
                    high, found = middle, tried
            return found
        return found

    def total(self, values: Iterable[ir.Value]) -> int:
        """The bytes of ``values``."""
        return sum(self._bytes[value] for value in values)
