"""The gradient of a body, as a separate body.

The gradient is first appended to the primal body, where all values are in scope and facts about them hold. It
then moves to a new body, together with copies of the primal nodes that it depends on. These copies recompute
the values that the caller does not save.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from graphopt import ir
from graphopt.autodiff.graph_builder import GraphBuilder, Size
from graphopt.autodiff.primal_node import PrimalNode
from graphopt.autodiff.reverse_mode import backward
from graphopt.autodiff.sequence_loop_builders import is_sequence


class BodyGradient:
    """The gradient of ``body``, a body of ``node``.

    Attributes:
        op: writes the nodes of the gradient.
        body: the primal body.
        primal: the nodes of the primal body, without nodes of the gradient.
        gradients: the gradient of each value, as found by :meth:`differentiate`.
    """

    def __init__(self, outer: GraphBuilder, node: PrimalNode, body: ir.Graph) -> None:
        self.op = outer.within(body)
        self.body = body
        self.gradients: dict[ir.Value, ir.Value] = {}
        self._outer = outer
        self._node = node
        self.primal = list(body)
        self._placeholders: dict[ir.Value, None] = {}

    def placeholder(self, like: ir.Value, suffix: str = "grad") -> ir.Value:
        """A placeholder with the type and shape of ``like``: a later input, or a value for ``resolve``."""
        cx = self.op.cx
        type_ = cx.facts.type(like) or like.type
        if type_ is None or isinstance(type_, ir.OptionalType):
            raise self._node.refusal(f"the type of {like.name!r} in its body is unknown or optional")
        new = self.op.formal(f"{like.name}_{suffix}", type_)
        cx.facts.assume_like(new, like=like)
        self._placeholders[new] = None
        return new

    def differentiate(self, cotangents: Iterable[tuple[ir.Value, ir.Value]], wrt: Iterable[ir.Value]) -> None:
        """Find the gradients of ``wrt``, given cotangents of outputs; an output may occur several times."""
        found = backward(self.op, self.body, self.op.sum_by_value(cotangents), wrt)
        self.gradients = found.gradients
        self._outer.stopped += found.stopped

    def discard(self) -> None:
        """Remove all nodes of the gradient."""
        self.op.drop_unread(0, [])
        self.op.drop_constants()

    def move_out(
        self,
        inputs: list[ir.Value],
        results: Sequence[ir.Value],
        resolve: Callable[[ir.Value], ir.Value],
        is_saved: Callable[[ir.Node], bool],
    ) -> ir.Graph:
        """The finished body of the gradient.

        Args:
            inputs: its inputs; ``resolve`` may append to them.
            results: its outputs.
            resolve: returns the value, in the scope of the new body, for an input of the primal body, an
                output of a saved node, or a placeholder. The nodes that ``resolve`` creates precede the
                others.
            is_saved: whether the outputs of a primal node are saved rather than recomputed.
        """
        op, edit = self.op, self.op.cx.edit
        outputs = self._as_outputs(results)
        made = op.nodes_since(0)
        needed, copied = self._dependencies(made, inputs, is_saved)
        values: dict[ir.Value, ir.Value] = {}
        mark = op.mark()
        for value in needed:
            if ir.constant_of(value) is None and value.producer() not in copied:
                values[value] = resolve(value)
        first = op.nodes_since(mark)
        self._lift_constants([*first, *copied, *made])
        copier = op.cloner(values)
        copies = copier.nodes(copied)
        for copy in copies:
            edit.append(self.body, copy)
            for output in copy.outputs:
                output.shape = None  # shapes declared in a body need not hold in every run
        for value in needed:
            copy_of = copier.values.get(value)
            if copy_of is not None:
                values[value] = copy_of
        nodes = [*first, *copies, *made]
        graph = edit.split_off(self.body, nodes, inputs, outputs, f"{self.body.name}_grad", values)
        op.cx.facts.invalidate(graph)
        return graph

    def _lift_constants(self, nodes: Iterable[ir.Node]) -> None:
        """Move constants that ``nodes`` read to the enclosing graph, in the scope of both bodies."""
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
        """``results`` as distinct outputs of nodes created here, copied by an Identity where needed."""
        own: dict[ir.Value, None] = {}
        for result in results:
            if result in own or not self.op.has_made(result):
                if is_sequence(result, self.op.cx):
                    self.op.require_opset(14)
                result = self.op.Identity(result)
            own[result] = None
        return list(own)

    def _dependencies(
        self, made: Sequence[ir.Node], inputs: Sequence[ir.Value], is_saved: Callable[[ir.Node], bool]
    ) -> tuple[list[ir.Value], dict[ir.Node, None]]:
        """The values of the body that ``made`` depends on, and the primal nodes to copy for them."""
        own, given = set(made), set(inputs)
        needed: dict[ir.Value, None] = {}

        def need(nodes: Iterable[ir.Node]) -> None:
            for node in nodes:
                for value in ir.reads(node):
                    here = value.graph is self.body or (value in self._placeholders and value not in given)
                    if here and value.producer() not in own:
                        needed[value] = None

        need(made)
        copied = []
        for node in reversed(self.primal):
            read = any(output in needed and ir.constant_of(output) is None for output in node.outputs)
            if read and not is_saved(node):
                copied.append(node)
                need([node])
        return list(needed), dict.fromkeys(reversed(copied))


def as_output(op: GraphBuilder, value: ir.Value, body: ir.Graph) -> ir.Value:
    """A value equal to ``value`` of ``body``, which the caller may add to the outputs of the body."""
    producer, output = value.producer(), value
    if producer is None or producer.graph is not body or value.is_graph_output():
        copy = op.cx.edit.make_node("Identity", [value], name=f"{value.name}_saved")
        op.cx.edit.append(body, copy)
        output = copy.outputs[0]
    declare(op, output, value)
    return output


def declare(op: GraphBuilder, output: ir.Value, like: ir.Value) -> None:
    """Declare the type of ``output`` of a body, and the shape of ``like`` as its shape.

    The rank is required: a Loop without iterations gathers empty tensors of that rank, and a Scan fails
    without a rank.
    """
    dtype, shape = op.dtype(like), op.cx.shape(like)
    if shape is not None:
        op.cx.edit.declare(output, dtype, [dim if isinstance(dim, int) else None for dim in shape])
    else:
        output.type, output.shape = ir.TensorType(dtype), None


def sizes_outside(op: GraphBuilder, node: PrimalNode, value: ir.Value) -> list[Size] | None:
    """The sizes of ``value`` in a body of ``node``, as values outside of the body; ``None`` if unknown."""
    cx, shape = op.cx, op.cx.shape(value)
    if shape is None:
        return None
    sources = {
        dim: (outer, axis)
        for outer in (*node.inputs, *node.captured)
        if outer is not None
        for axis, dim in enumerate(cx.shape(outer) or ())
        if not isinstance(dim, int)
    }
    if not all(isinstance(dim, int) or dim in sources for dim in shape):
        return None
    return [dim if isinstance(dim, int) else op.dim(*sources[dim]) for dim in shape]
