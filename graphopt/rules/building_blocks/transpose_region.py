"""The region of a graph through which a Transpose can be propagated towards the operands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from graphopt import ir
from graphopt.rewrite import Builder, Match
from graphopt.rules.building_blocks import position_dependence, quantizers
from graphopt.rules.building_blocks.axes import perm_of
from graphopt.rules.building_blocks.operands import producer_of
from graphopt.rules.building_blocks.transpose_propagation import is_cheap, mover_of
from graphopt.util.lazy_dataclass import dataclass

#: Maximum number of nodes of a region, which keeps the work linear.
_MAX_NODES = 24


@dataclass
class Region:
    """Nodes that can compute transposed results from transposed operands.

    Attributes:
        top: the operand of the Transpose, produced by one of the nodes.
        nodes: the nodes, in the order of the search; their readers are among them, or the Transpose.
        operands: the values read from outside that have to be transposed.
        exact: whether only operators are passed whose results keep every bit.
    """

    m: Match
    top: ir.Value
    perm: tuple[int, ...]
    exact: bool = True
    nodes: dict[ir.Node, None] = field(default_factory=dict)
    operands: dict[ir.Value, None] = field(default_factory=dict)

    @classmethod
    def above(cls, m: Match, top: ir.Value, perm: Sequence[int], *, exact: bool = True) -> Region:
        """The largest region that computes ``top``, up to the limit of nodes."""
        region = cls(m, top, tuple(perm), exact)
        pending = [top]
        while pending and len(region.nodes) < _MAX_NODES:
            node = pending.pop(0).producer()
            if node is not None and node not in region.nodes and region._lets_pass(node):
                region.nodes[node] = None
                pending.extend(region._data(node))
        region._drop_shared()
        for node in region.nodes:
            for value in region._data(node):
                if value.producer() not in region.nodes:
                    region.operands[value] = None
        return region

    def _drop_shared(self) -> None:
        """Drop nodes with readers outside, and nodes reached only through such nodes."""
        changed = True
        while changed:
            shared = [node for node in self.nodes if self._read_outside(node.outputs[0])]
            for node in shared:
                del self.nodes[node]
            changed = bool(shared)
        reached: dict[ir.Node, None] = {}
        pending = [self.top]
        while pending:
            producer = pending.pop(0).producer()
            if producer is not None and producer in self.nodes and producer not in reached:
                reached[producer] = None
                pending.extend(self._data(producer))
        self.nodes = reached

    def _read_outside(self, value: ir.Value) -> bool:
        return value.is_graph_output() or any(
            user not in self.nodes and user is not self.m.root and user.graph is not None
            for user, _ in value.uses()
        )

    def _lets_pass(self, node: ir.Node) -> bool:
        if node.graph is not self.m.root.graph or len(node.outputs) != 1:
            return False
        mover = mover_of(self.m, node)
        if mover is None:
            return False
        if self.exact and (mover.reduces or position_dependence.depends_on_position(self.m, node)):
            return False
        if position_dependence.is_integer_power(self.m, node):
            return False
        return self.m.rank(node.outputs[0]) == len(self.perm) and mover.lets_pass(self.m, node, self.perm)

    def _data(self, node: ir.Node) -> list[ir.Value]:
        """The operands of ``node`` that must be transposed."""
        mover = mover_of(self.m, node)
        return [] if mover is None else mover.data(self.m, node)

    # Profit, and the rewrite ---------------------------------------------------------------

    def transposes_saved(self) -> int:
        """The number of Transposes saved if the region computes transposed results."""
        saved = 1
        for value in self.operands:
            inner = self._transpose(value)
            if inner is not None:
                saved += not self._read_outside(value)
                saved -= self._composed(inner) is not None
            elif not is_cheap(self.m, value):
                saved -= 1
        return saved

    def _transpose(self, value: ir.Value) -> ir.Node | None:
        node = producer_of(value, "Transpose")
        return node if node is not None and perm_of(self.m, node) is not None else None

    def _composed(self, inner: ir.Node) -> list[int] | None:
        """The composed permutation of ``inner`` and the root; ``None`` if they cancel."""
        perm = perm_of(self.m, inner)
        assert perm is not None
        both = [perm[axis] for axis in self.perm]
        return None if both == sorted(both) else both

    def rebuild(self, op: Builder) -> ir.Value:
        """Rebuild the region on transposed operands; returns the transposed ``top``."""
        new = {value: self._permuted(op, value) for value in self.operands}
        pending = list(self.nodes)
        while pending:
            node = next(node for node in pending if all(value in new for value in self._data(node)))
            pending.remove(node)
            data = dict.fromkeys(self._data(node))
            inputs = [new[value] if value in data else value for value in node.inputs]
            mover = mover_of(self.m, node)
            assert mover is not None
            result = mover.rebuild(op, self.m, node, inputs, self.perm)
            assert isinstance(result, ir.Value)
            new[node.outputs[0]] = result
        return new[self.top]

    def _permuted(self, op: Builder, value: ir.Value) -> ir.Value:
        """``value`` transposed."""
        inner = self._transpose(value)
        if inner is not None:
            both, source = self._composed(inner), inner.inputs[0]
            assert source is not None
            return source if both is None else op.Transpose(source, perm=both)
        dequantize = quantizers.dequantized_constant(self.m, value)
        if dequantize is not None and is_cheap(self.m, value):
            return quantizers.transposed_constant(op, self.m, dequantize, self.perm)
        array = self.m.traced(value) if is_cheap(self.m, value) else None
        if array is None:
            return op.Transpose(value, perm=list(self.perm))
        full = array.reshape(*(1,) * (len(self.perm) - array.ndim), *array.shape)
        return op.constant(full.transpose(self.perm), value.name)
