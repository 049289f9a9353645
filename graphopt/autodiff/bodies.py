"""The gradient of a body, in a body of its own.

It is written at the end of the forward body first, where all values are at hand and facts about them hold.
Then it moves out, with copies of the forward nodes that compute what it reads: a body runs again for its
gradient, but for what the caller saves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from graphopt import ir
from graphopt.autodiff.builder import GraphBuilder, Size
from graphopt.autodiff.lib.sequences import is_sequence
from graphopt.autodiff.primal import PrimalNode
from graphopt.autodiff.reverse import backward


class BodyGradient:
    """The gradient of ``body``, which ``node`` holds.

    Attributes:
        op: writes nodes of the gradient.
        body: the forward body.
        forward: the nodes of the body without those of the gradient.
        gradients: what :meth:`walk` found, by value.
    """

    def __init__(self, outer: GraphBuilder, node: PrimalNode, body: ir.Graph) -> None:
        self.op = outer.within(body)
        self.body = body
        self.gradients: dict[ir.Value, ir.Value] = {}
        self._outer = outer
        self._node = node
        self.forward = list(body)
        self._open: dict[ir.Value, None] = {}

    def like(self, value: ir.Value, suffix: str = "grad") -> ir.Value:
        """A value of the type and shape of ``value``, which becomes an input or is told by ``leaf``."""
        cx = self.op.cx
        type_ = cx.facts.type(value) or value.type
        if type_ is None or isinstance(type_, ir.OptionalType):
            raise self._node.refusal(f"the type of {value.name!r} in its body is unknown, or an optional one")
        new = ir.Value(name=cx.edit.fresh_name(f"{value.name}_{suffix}"), type=type_)
        cx.facts.presume(new, like=value)
        self._open[new] = None
        return new

    def walk(self, given: Iterable[tuple[ir.Value, ir.Value]], wrt: Iterable[ir.Value]) -> None:
        """Find the gradients of ``wrt``, for those ``given`` of outputs, which the body may return twice."""
        sums: dict[ir.Value, ir.Value] = {}
        for value, dy in given:
            sums[value] = self.op.added(sums[value], dy) if value in sums else dy
        found = backward(self.op, self.body, sums, wrt)
        self.gradients = found.gradients
        self._outer.stopped += found.stopped

    def discard(self) -> None:
        """Remove what was written."""
        self.op.drop_unread(0, [])
        self.op.drop_constants()

    def move_out(
        self,
        inputs: list[ir.Value],
        results: Sequence[ir.Value],
        leaf: Callable[[ir.Value], ir.Value],
        saves: Callable[[ir.Node], bool],
    ) -> ir.Graph:
        """The body of the gradient.

        Args:
            inputs: its inputs, to which ``leaf`` may add.
            results: its outputs.
            leaf: what stands in the new body for an input of the forward body, an output of a node that
                is not to run again, or a value of :meth:`like`; nodes that it makes come first.
            saves: whether a node of the forward body is not to run again.
        """
        op, edit = self.op, self.op.cx.edit
        outputs = self._as_outputs(results)
        made = op.made_since(0)
        needed, copied = self._needed(made, inputs, saves)
        values: dict[ir.Value, ir.Value] = {}
        mark = op.mark()
        for value in needed:
            if ir.constant_of(value) is None and value.producer() not in copied:
                values[value] = leaf(value)
        first = op.made_since(mark)
        self._lift_constants([*first, *copied, *made])
        copier = ir.Copier(
            {**values},
            value_name=edit.fresh_name,
            node_name=edit.fresh_node_name,
            declarations=False,
        )
        copies = copier.nodes(copied)
        for copy in copies:
            edit.append(self.body, copy)
            for output in copy.outputs:
                output.shape = None  # what a body declares of its outputs need not hold for each run
        for value in needed:
            copy_of = copier.values.get(value)
            if copy_of is not None:
                values[value] = copy_of
        nodes = [*first, *copies, *made]
        graph = edit.split_off(self.body, nodes, inputs, outputs, f"{self.body.name}_grad", values)
        op.cx.facts.forget(graph)
        return graph

    def _lift_constants(self, nodes: Iterable[ir.Node]) -> None:
        """Move constants that ``nodes`` read to the graph around the body, where both bodies see them."""
        edit = self.op.cx.edit
        for value in [value for node in nodes for value in ir.reads(node) if value.graph is self.body]:
            tensor = ir.constant_of(value)
            if tensor is not None:
                edit.replace(value, self._outer.constant(tensor))
        self.op.drop_constants()
        for value in list(self.body.initializers.values()):
            if not ir.is_read(value):
                edit.remove_initializer(value)

    def _as_outputs(self, results: Iterable[ir.Value]) -> list[ir.Value]:
        """``results``, where an Identity bears those that are no node's here, or there twice."""
        own: dict[ir.Value, None] = {}
        for result in results:
            if result in own or not self.op.has_made(result):
                if is_sequence(result, self.op.cx):
                    self.op.needs(14)
                result = self.op.Identity(result)
            own[result] = None
        return list(own)

    def _needed(
        self, made: Sequence[ir.Node], inputs: Sequence[ir.Value], saves: Callable[[ir.Node], bool]
    ) -> tuple[list[ir.Value], dict[ir.Node, None]]:
        """What ``made`` reads of the body, all that this is computed of, and the nodes to copy for it."""
        own, given = set(made), set(inputs)
        needed: dict[ir.Value, None] = {}

        def need(nodes: Iterable[ir.Node]) -> None:
            for node in nodes:
                for value in ir.reads(node):
                    here = value.graph is self.body or (value in self._open and value not in given)
                    if here and value.producer() not in own:
                        needed[value] = None

        need(made)
        copied = []
        for node in reversed(self.forward):
            read = any(output in needed and ir.constant_of(output) is None for output in node.outputs)
            if read and not saves(node):
                copied.append(node)
                need([node])
        return list(needed), dict.fromkeys(reversed(copied))


def as_output(op: GraphBuilder, value: ir.Value, body: ir.Graph) -> ir.Value:
    """``value`` of ``body`` as a further output of it, which the caller adds."""
    maker, output = value.producer(), value
    if maker is None or maker.graph is not body or value.is_graph_output():
        copy = op.cx.edit.make_node("Identity", [value], name=f"{value.name}_saved")
        op.cx.edit.append(body, copy)
        output = copy.outputs[0]
    declare(op, output, value)
    return output


def declare(op: GraphBuilder, output: ir.Value, like: ir.Value) -> None:
    """Declare what is known of ``output`` of a body, which is shaped as ``like``.

    A Loop that never runs gathers tensors without elements of that rank; Scan does not run without.
    """
    dtype, shape = op.dtype(like), op.cx.shape(like)
    if shape is not None:
        op.cx.edit.declare(output, dtype, [dim if isinstance(dim, int) else None for dim in shape])
    else:
        output.type, output.shape = ir.TensorType(dtype), None


def sizes_outside(op: GraphBuilder, node: PrimalNode, value: ir.Value) -> list[Size] | None:
    """The sizes of ``value`` of a body of ``node`` as ``op`` can tell them outside; ``None`` if it can't."""
    cx, shape = op.cx, op.cx.shape(value)
    if shape is None:
        return None
    places = {
        dim: (outer, axis)
        for outer in (*node.inputs, *node.captured)
        if outer is not None
        for axis, dim in enumerate(cx.shape(outer) or ())
        if not isinstance(dim, int)
    }
    if not all(isinstance(dim, int) or dim in places for dim in shape):
        return None
    return [dim if isinstance(dim, int) else op.dim(*places[dim]) for dim in shape]
