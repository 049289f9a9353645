"""The part of a graph above a value through which a Transpose can move."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from graphopt import ir
from graphopt.ops import facts
from graphopt.rewrite.builder import Builder
from graphopt.rewrite.match import Match
from graphopt.rules import _forms as forms
from graphopt.rules import _quantized as quantized

#: More nodes are not looked at, so that the work stays linear.
_MAX_NODES = 24
#: Larger constants are not transposed when others read them as they are.
_SMALL = 1024

_QUANTIZERS = ("QuantizeLinear", "DequantizeLinear")
#: Work along axes that another order of the axes only renames.
_ALONG_ONE_AXIS = ("Softmax", "LogSoftmax")


@dataclass
class Region:
    """Nodes that can compute transposed results from transposed operands, and what they read.

    Attributes:
        top: the value that is wanted transposed; made by one of the nodes.
        nodes: in the order in which they were met; everything that reads them is one of them,
            or the Transpose itself.
        operands: the values that they read from outside, and that have to be transposed.
        reduces: whether reductions and Softmax let a Transpose pass.
    """

    m: Match
    top: ir.Value
    perm: tuple[int, ...]
    reduces: bool = False
    nodes: dict[ir.Node, None] = field(default_factory=dict)
    operands: dict[ir.Value, None] = field(default_factory=dict)

    @classmethod
    def above(cls, m: Match, top: ir.Value, perm: Sequence[int], *, reduces: bool = False) -> Region:
        """The largest such region above ``top``, of few nodes."""
        region = cls(m, top, tuple(perm), reduces)
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
        """Give up nodes that something outside reads, and what only they lead to."""
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
        if node.domain != "" and not quantized.is_quantizer(node, *_QUANTIZERS):
            return False
        if self.m.rank(node.outputs[0]) != len(self.perm):
            return False
        if node.op_type == "Concat":
            return forms.axis_of(self.m, node, len(self.perm)) is not None
        if node.op_type in _QUANTIZERS:
            return self._is_scalar_quantizer(node) or self._is_axis_quantizer(node)
        if node.op_type == "Pad":
            return forms.padding_of(self.m, node) is not None
        if node.op_type == "Slice":
            return forms.slice_ranges(self.m, node) is not None
        if node.op_type in _ALONG_ONE_AXIS:
            # below opset 13 they flatten what is before and behind the axis
            return (
                self.reduces
                and self.m.version >= 13
                and forms.axis_of(self.m, node, len(self.perm)) is not None
            )
        if node.op_type in forms.REDUCTIONS:
            return (
                self.reduces and self.m.attribute(node, "keepdims") == 1 and bool(forms.axes_of(self.m, node))
            )
        if not facts.is_elementwise(node):
            return False
        data = list(self._data(node))
        return bool(data) and all(self._can_permute(value) for value in data)

    def _is_scalar_quantizer(self, node: ir.Node) -> bool:
        """Whether ``node`` quantizes the whole tensor by one scale."""
        return node.op_type in _QUANTIZERS and quantized.is_per_tensor(self.m, node)

    def _is_axis_quantizer(self, node: ir.Node) -> bool:
        """Whether ``node`` quantizes by a scale for each index of one axis."""
        scale = node.inputs[1]
        one_axis = scale is not None and self.m.rank(scale) == 1
        return one_axis and forms.axis_of(self.m, node, len(self.perm), default=1) is not None

    def _data(self, node: ir.Node) -> Iterator[ir.Value]:
        """The operands of ``node`` that must be transposed with its result."""
        values = [value for value in node.inputs if value is not None]
        if node.op_type in ("Pad", "Slice", "Clip", *forms.REDUCTIONS, *_QUANTIZERS):
            values = values[:1]
        elif node.op_type != "Concat":
            values = [value for value in values if not forms.has_one_element(self.m, value)]
        yield from values

    def _can_permute(self, value: ir.Value) -> bool:
        rank = self.m.rank(value)
        if rank == len(self.perm):
            return True
        return rank is not None and rank < len(self.perm) and self._is_cheap(value)

    def _is_cheap(self, value: ir.Value) -> bool:
        dequantize = quantized.dequantized_constant(self.m, value)
        if dequantize is not None and dequantize.inputs[0] is not None:
            value = dequantize.inputs[0]
        constant = ir.constant_of(value)
        return constant is not None and (constant.size <= _SMALL or self.m.only_use(value))

    # What it would cost, and doing it -----------------------------------------------------

    def transposes_saved(self) -> int:
        """How many Transposes fewer there are if the region computes transposed results."""
        saved = 1
        for value in self.operands:
            inner = self._transpose(value)
            if inner is not None:
                saved += not self._read_outside(value)
                saved -= self._composed(inner) is not None
            elif not self._is_cheap(value):
                saved -= 1
        return saved

    def _transpose(self, value: ir.Value) -> ir.Node | None:
        node = value.producer()
        is_transpose = node is not None and node.op_type == "Transpose" and node.domain == ""
        return node if is_transpose and node is not None and forms.perm_of(self.m, node) is not None else None

    def _composed(self, inner: ir.Node) -> list[int] | None:
        """The permutation after ``inner`` and the root; ``None`` if they cancel."""
        perm = forms.perm_of(self.m, inner)
        assert perm is not None
        both = [perm[axis] for axis in self.perm]
        return None if both == sorted(both) else both

    def rebuild(self, op: Builder) -> ir.Value:
        """The nodes of the region anew, on transposed operands; returns the transposed ``top``."""
        new = {value: self._permuted(op, value) for value in self.operands}
        pending = list(self.nodes)
        while pending:
            node = next(node for node in pending if all(value in new for value in self._data(node)))
            pending.remove(node)
            data = dict.fromkeys(self._data(node))
            inputs = [new[value] if value in data else value for value in node.inputs]
            new[node.outputs[0]] = self._rebuilt(op, node, inputs)
        return new[self.top]

    def _rebuilt(self, op: Builder, node: ir.Node, inputs: list[ir.Value | None]) -> ir.Value:
        match node.op_type:
            case "Concat" | "QuantizeLinear" | "DequantizeLinear" if not self._is_scalar_quantizer(node):
                axis = forms.axis_of(self.m, node, len(self.perm))
                assert axis is not None
                result = op.like(node, inputs, axis=self.perm.index(axis))
            case "Pad":
                padding = forms.padding_of(self.m, node)
                assert padding is not None
                before, after = (
                    [side[axis] for axis in self.perm] for side in (padding.before, padding.after)
                )
                result = forms.pad(op, self.m, node, inputs[0], before + after)
            case "Slice":
                ranges = forms.slice_ranges(self.m, node)
                assert ranges is not None and inputs[0] is not None
                moved = [replace(taken, axis=self.perm.index(taken.axis)) for taken in ranges]
                result = forms.slice_(op, self.m, inputs[0], moved)
            case "Softmax" | "LogSoftmax":
                axis = forms.axis_of(self.m, node, len(self.perm))
                assert axis is not None
                result = op.like(node, inputs, axis=self.perm.index(axis))
            case kind if kind in forms.REDUCTIONS:
                axes = forms.axes_of(self.m, node)
                assert axes is not None and inputs[0] is not None
                moved_axes = sorted(self.perm.index(axis) for axis in axes)
                result = forms.reduce(op, self.m, kind, inputs[0], moved_axes, keepdims=True)
            case _:
                result = op.like(node, inputs)
        assert isinstance(result, ir.Value)
        return result

    def _permuted(self, op: Builder, value: ir.Value) -> ir.Value:
        """``value`` transposed."""
        inner = self._transpose(value)
        if inner is not None:
            both, source = self._composed(inner), inner.inputs[0]
            assert source is not None
            return source if both is None else op.Transpose(source, perm=both)
        dequantize = quantized.dequantized_constant(self.m, value)
        if dequantize is not None and self._is_cheap(value):
            return quantized.transposed_constant(op, self.m, dequantize, self.perm)
        array = self.m.constant(value) if self._is_cheap(value) else None
        if array is None:
            return op.Transpose(value, perm=list(self.perm))
        full = array.reshape((1,) * (len(self.perm) - array.ndim) + array.shape)
        return op.constant(np.ascontiguousarray(full.transpose(self.perm)), value.name)
