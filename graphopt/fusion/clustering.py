"""Clustering: assign nodes to loop nests.

Nodes are visited in reverse order. A node joins the cluster of its readers if the index at which they read
its result can be propagated through the node; otherwise, the node starts a new cluster. Clusters are totally
ordered, and no edge leads backwards: a node may join only the first of its readers' clusters, and a new
cluster precedes all others. A value with readers outside of its cluster is stored by the cluster that
computes it. Clusters that read the same value are fused horizontally if their iteration spaces are equal and
no input of one depends on a cluster in between.

The scheme follows Inductor's scheduler (``torch/_inductor/scheduler.py``), with the total order in place of a
search for cycles.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field

from graphopt import ir
from graphopt.context import Context
from graphopt.fusion.loop_nest import AffineMap, LoopNest
from graphopt.fusion.loops.ir import CantFuse
from graphopt.fusion.operator_table import EmitContext, Operator, find
from graphopt.util.lazy_dataclass import dataclass

#: Maximum number of nodes per cluster: larger kernels compile slowly, and gain nothing.
_MOST_NODES = 96


@dataclass(eq=False)
class Cluster:
    """Nodes computed in one loop nest.

    Attributes:
        order: position in the order of execution.
        nest: the loops; ``None`` for a node that can't be computed in loops.
        nodes: its nodes, in reverse order during clustering, in graph order afterwards.
        reason: the reason why the cluster is not part of its readers' cluster.
    """

    order: int
    nest: LoopNest | None
    nodes: list[ir.Node] = field(default_factory=list)
    reason: str = ""

    @property
    def inputs(self) -> list[ir.Value]:
        """The values that are read, but not computed, in the cluster."""
        assert self.nest is not None
        defined = {output for node in self.nodes for output in node.outputs}
        return [value for value in self.nest.required_indices if value not in defined]


def find_clusters(nodes: Sequence[ir.Node], cx: Context) -> list[Cluster]:
    """Cluster ``nodes``, given in graph order; the result is in order of execution."""
    return _Clustering(nodes, cx).run()


class _Clustering:
    def __init__(self, nodes: Sequence[ir.Node], cx: Context) -> None:
        self._nodes = nodes
        self._cx = cx
        self._position = {node: -number for number, node in enumerate(nodes)}
        self._lowest = 0
        self._cluster_of: dict[ir.Node, Cluster] = {}
        self._clusters: dict[Cluster, None] = {}

    def run(self) -> list[Cluster]:
        for node in reversed(self._nodes):
            self._assign(node)
        for cluster in self._clusters:
            cluster.nodes.reverse()
        return sorted(self._clusters, key=lambda cluster: cluster.order)

    def _assign(self, node: ir.Node) -> None:
        readers = dict.fromkeys(
            self._cluster_of[reader]
            for output in node.outputs
            for reader in ir.readers(output)
            if reader in self._cluster_of
        )
        reason = ""
        if readers:
            first, *others = sorted(readers, key=lambda cluster: cluster.order)
            try:
                self._join(node, first, others)
                return
            except CantFuse as refusal:
                reason = str(refusal)
        self._begin(node, reason)

    def _begin(self, node: ir.Node, reason: str) -> None:
        order = self._lowest = self._lowest - 1
        nest = LoopNest(self._cx.facts)
        cluster = Cluster(order, nest, [node], reason)
        try:
            used = [output for output in node.outputs if output.name and self._is_live(output, None)]
            if not used:
                raise CantFuse("nothing reads its results")
            nest.begin(used[0])
            self._add(node, nest, None)
        except CantFuse as refusal:
            cluster.nest, cluster.reason = None, str(refusal)
        self._clusters[cluster] = None
        self._cluster_of[node] = cluster

    def _join(self, node: ir.Node, first: Cluster, others: Sequence[Cluster]) -> None:
        """Add ``node`` to ``first``, and fuse ``others`` with it where possible."""
        if first.nest is None:
            raise CantFuse(f"it is read by a node that is not computed in loops: {first.reason}")
        if len(first.nodes) >= _MOST_NODES:
            raise CantFuse(f"a group has at most {_MOST_NODES} nodes")
        nest = first.nest.copy()
        merged: list[Cluster] = []
        for other in others:
            fused = self._fuse_with_nest_of(node, nest, first, other, merged)
            if fused is not None:
                nest = fused
                merged.append(other)
        inside = [first, *merged]
        self._add(node, nest, inside)
        first.nest = nest
        for other in merged:
            for moved in other.nodes:
                self._cluster_of[moved] = first
            del self._clusters[other]
        if merged:
            members = [member for cluster in inside for member in cluster.nodes]
            first.nodes = sorted(members, key=self._position.__getitem__)
            self._drop_dead_stores(first)
        first.nodes.append(node)
        self._cluster_of[node] = first

    def _fuse_with_nest_of(
        self, node: ir.Node, nest: LoopNest, first: Cluster, other: Cluster, merged: Sequence[Cluster]
    ) -> LoopNest | None:
        """``nest`` fused with the nest of ``other``; ``None`` if that is impossible."""
        size = sum(len(cluster.nodes) for cluster in (first, other, *merged))
        if other.nest is None or size >= _MOST_NODES:
            return None
        for value in other.inputs:  # the inputs of the node must be computed before ``first``
            producer = value.producer()
            source = None if producer is None else self._cluster_of.get(producer)
            if source is not None and source not in (first, *merged) and source.order > first.order:
                return None
        both = (nest.required_indices, other.nest.required_indices)
        shared = next((value for value in node.outputs if all(value in read for read in both)), None)
        if shared is None:
            return None
        fused = nest.copy()
        try:
            fused.fuse_horizontally(other.nest, shared)
        except CantFuse:
            return None
        return fused

    def _drop_dead_stores(self, cluster: Cluster) -> None:
        """Remove stores of values that no longer have readers outside of the nest."""
        assert cluster.nest is not None
        for value in list(cluster.nest.stores):
            if not self._is_live(value, [cluster]):
                del cluster.nest.stores[value]

    def _add(self, node: ir.Node, nest: LoopNest, inside: Sequence[Cluster] | None) -> None:
        operator = find(node)
        if operator is None:
            raise CantFuse("the operator has no kernel")
        for index, output in enumerate(node.outputs):
            if output.name and self._is_live(output, inside):
                nest.store(output)
            for value, indices in operand_indices(
                operator, EmitContext(node, self._cx, nest, index, ()), output
            ):
                nest.require(value, indices)

    def _is_live(self, value: ir.Value, inside: Sequence[Cluster] | None) -> bool:
        """Whether ``value`` is used outside of the clusters ``inside``."""
        if value.is_graph_output():
            return True
        return any(self._cluster_of.get(reader) not in (inside or ()) for reader in ir.readers(value))


def operand_indices(
    operator: Operator, ctx: EmitContext, output: ir.Value
) -> Iterator[tuple[ir.Value, AffineMap]]:
    """The operands of a node, with the indices at which they are read for all uses of ``output``."""
    for indices in ctx.nest.indices(output):
        site = EmitContext(ctx.node, ctx.cx, ctx.nest, ctx.output, indices)
        for item in operator.indexing_maps(site):
            if item is not None:
                yield item
