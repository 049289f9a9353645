"""Select the residuals, the values that the forward pass saves for the backward pass, by a minimum cut.

As in PyTorch's ``min_cut_rematerialization_partition``, the network has an edge for each forward value, with
the size of the value in bytes as capacity. Edges of unlimited capacity lead from the operands of a node to
its results, and from the values that the backward pass reads to the sink. PyTorch weighs bytes by their
distance from the backward pass and forbids recomputing expensive operators. Here an edge leads from the
source to each node. Its capacity is the weighted cost of recomputing the node, unlimited if the node can't be
recomputed. A minimum cut thus minimizes the sum of saved bytes and recomputed work.
"""

from __future__ import annotations

from collections.abc import Iterable

from graphopt import ir
from graphopt.autodiff.recomputation_costs import Estimates, is_compute_bound, recompute_obstacle
from graphopt.context import Context
from graphopt.errors import UnsupportedModel
from graphopt.ops import traits
from graphopt.util.min_cut import Network, Unbounded

#: Default discount: recomputed work is weighted by 2**-DISCOUNT relative to saved bytes.
DISCOUNT = 4
#: Largest discount.
_MAX_DISCOUNT = 40


class JointPartition:
    """The nodes of a joint graph, by the pass that runs them.

    Attributes:
        nodes: all nodes, in order.
        reads: the values that each node and its bodies read.
        backward: nodes that depend on cotangents or compute a gradient output.
        forward: nodes that the other outputs depend on. Nodes in neither set may run in either pass.
        outputs: the outputs that are not gradients.
        crossing: non-constant values that backward nodes read from other nodes.
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
        self.crossing = dict.fromkeys(
            value
            for node in self.backward
            for value in self.reads[node]
            if value not in carried and not is_available(value)
        )

    def needed(
        self, values: Iterable[ir.Value], given: dict[ir.Value, None] | None = None
    ) -> dict[ir.Node, None]:
        """The nodes that ``values`` depend on, if the values in ``given`` are available."""
        given = given or {}
        found: dict[ir.Node, None] = {}
        pending = list(values)
        while pending:
            value = pending.pop()
            node = value.producer()
            if node is not None and node not in found and value not in given and not is_available(value):
                found[node] = None
                pending.extend(self.reads[node])
        return found


def dependents(graph: ir.Graph, names: Iterable[str]) -> dict[ir.Node, None]:
    """The nodes that depend on the inputs ``names``."""
    given = frozenset(names)
    carried = {value: None for value in graph.inputs if value.name in given}
    found: dict[ir.Node, None] = {}
    for node in graph:
        if any(value in carried for value in ir.reads(node)):
            found[node] = None
            carried.update(dict.fromkeys(node.outputs))
    return found


def is_available(value: ir.Value) -> bool:
    """Whether both passes have ``value`` without saving it: it is an input of the model, or constant."""
    return value.producer() is None or ir.constant_of(value) is not None


def all_residuals(joint: JointPartition) -> list[ir.Value]:
    """The residuals if the backward pass recomputes nothing.

    If the backward pass needs only the shape of a value, the shape is the residual.
    """
    early = dict(joint.forward)
    for node in joint.nodes:
        if traits.reads_only_shape(node) and node not in joint.backward:
            early |= joint.needed(node.outputs)
    late = joint.needed(joint.crossing, {value: None for node in early for value in node.outputs})
    read = [value for node in (*late, *joint.backward) for value in joint.reads[node]]
    found = {value: None for value in read if value.producer() in early and not is_available(value)}
    return [value for node in joint.nodes for value in node.outputs if value in found]


class ResidualSelection:
    """Selects residuals.

    Args:
        banned: values that can't be residuals.
    """

    def __init__(
        self, joint: JointPartition, estimates: Estimates, cx: Context, banned: Iterable[ir.Value]
    ) -> None:
        self._joint = joint
        self._banned = dict.fromkeys(banned)
        needed = joint.needed(joint.crossing)
        self._nodes = [node for node in joint.nodes if node in needed]
        self._free = frozenset(joint.outputs)
        self._bytes = {out: self.size(out, estimates) for node in self._nodes for out in node.outputs}
        self._once = {node: None for node in self._nodes if self._runs_once(node, cx)}
        self._costs = {
            node: max(estimates.cost(node), 1) if node in joint.forward else 0 for node in self._nodes
        }

    def _runs_once(self, node: ir.Node, cx: Context) -> bool:
        """Whether ``node`` has to run exactly once, in the forward pass."""
        if node in self._joint.forward:
            return recompute_obstacle(node, cx) is not None
        return not cx.is_deterministic(node)

    def size(self, value: ir.Value, estimates: Estimates) -> int:
        """The size of ``value`` as a residual, in bytes; 0 for outputs of the model."""
        return 0 if value in self._free else max(estimates.bytes(value), 1)

    def minimum(self, discount: int = DISCOUNT, *, compute_bound: bool = False) -> list[ir.Value]:
        """The residuals of a minimum cut, with recomputed work weighted by 2**-discount.

        Args:
            compute_bound: whether compute-bound operators may be recomputed.

        Raises:
            UnsupportedModel: a value can neither be saved nor recomputed.
        """
        network = Network()
        source, sink = network.node(), network.node()
        ends: dict[ir.Value, tuple[int, int]] = {}
        for node in self._nodes:
            vertex = network.node()
            once = node in self._once or (
                not compute_bound and self._costs[node] > 0 and is_compute_bound(node)
            )
            cost = self._costs[node] << (_MAX_DISCOUNT - discount)
            if once or cost:
                network.edge(source, vertex, None if once else cost)
            for value in self._joint.reads[node]:
                if value in ends:
                    network.edge(ends[value][1], vertex)
            for value in node.outputs:
                computed, saved = ends[value] = network.node(), network.node()
                network.edge(vertex, computed)
                size = None if value in self._banned else self._bytes[value] << _MAX_DISCOUNT
                network.edge(computed, saved, size)
                if value in self._joint.crossing:
                    network.edge(saved, sink)
        try:
            _, late = network.cut(source, sink)
        except Unbounded:
            raise UnsupportedModel(
                "the model can't be split: a value of unknown type can't be passed to the backward pass"
            ) from None
        return [value for value, (computed, saved) in ends.items() if late[saved] and not late[computed]]

    def within(self, budget: float) -> list[ir.Value]:
        """Residuals of at most ``budget`` bytes, with little recomputed work; the smallest if none fit."""
        for compute_bound, low in ((False, DISCOUNT), (True, 0)):
            high = _MAX_DISCOUNT
            found = self.minimum(high, compute_bound=compute_bound)
            if self.total(found) > budget:
                continue
            while low < high:  # the saved bytes decrease as the discount grows
                middle = (low + high) // 2
                tried = self.minimum(middle, compute_bound=compute_bound)
                if self.total(tried) > budget:
                    low = middle + 1
                else:
                    high, found = middle, tried
            return found
        return found

    def total(self, values: Iterable[ir.Value]) -> int:
        """The bytes of ``values``."""
        return sum(self._bytes[value] for value in values)
