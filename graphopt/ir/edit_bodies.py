"""Changing constants, and the bodies of If, Loop and Scan: the second floor of the Editor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from graphopt.ir import name_references
from graphopt.ir._onnx_ir import onnx_ir
from graphopt.ir.contents import contents_of
from graphopt.ir.edit_graph import GraphEditor, graph_of
from graphopt.ir.schemas import operator_schema
from graphopt.ir.scopes import bodies, normal_imports, with_bodies
from graphopt.ir.uses import replace_uses, replace_within


class ConstantRefused(Exception):
    """A graph can't hold a constant of this type; the text says why. See :meth:`Editor.takes_constant`."""


def _tensor(data: np.ndarray | np.generic | onnx_ir.TensorProtocol) -> onnx_ir.TensorProtocol:
    """``data`` as a tensor, in this machine's byte order."""
    if not isinstance(data, np.ndarray | np.generic):
        return data
    array = np.asarray(data)
    return onnx_ir.Tensor(array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("=")))


class BodyEditor(GraphEditor):
    """What :class:`graphopt.ir.editor.Editor` does to constants and bodies."""

    _named: tuple[int, frozenset[str]] = (-1, frozenset())

    # Constants ---------------------------------------------------------------------------

    def constant(
        self, graph: onnx_ir.Graph, data: np.ndarray | np.generic | onnx_ir.TensorProtocol, name: str
    ) -> onnx_ir.Value:
        """A constant of ``graph`` with the given contents.

        It is an initializer; in functions, which have none, and below IR version 4, where
        initializers are inputs, a Constant node at the head of the graph.

        Raises:
            ConstantRefused: the function's opset has no Constant of this type.
        """
        tensor = _tensor(data)
        if self.model.ir_version < 4 or self.scopes.function(graph) is not None:
            return self.constant_node(graph, tensor, name)
        value = onnx_ir.Value(
            name=self.fresh_name(name),
            type=onnx_ir.TensorType(tensor.dtype),
            shape=onnx_ir.Shape(tensor.shape.numpy()),
            const_value=tensor,
        )
        graph.register_initializer(value)
        self._note_constant(value, tensor, graph)
        self._changed("constant")
        return value

    def _note_constant(
        self, value: onnx_ir.Value, tensor: onnx_ir.TensorProtocol, graph: onnx_ir.Graph
    ) -> None:
        contents = contents_of(self.model)
        if contents is not None:
            contents.note_constant(value, tensor, graph)

    def constant_node(
        self, graph: onnx_ir.Graph, data: np.ndarray | np.generic | onnx_ir.TensorProtocol, name: str
    ) -> onnx_ir.Value:
        """The output of a new Constant node at the head of ``graph``; raises as :meth:`constant` does."""
        tensor = _tensor(data)
        if not self.takes_constant(graph, tensor.dtype):
            raise ConstantRefused(f"the function's opset has no Constant of type {tensor.dtype.name.lower()}")
        node = self.make_node("Constant", [], {"value": tensor}, name=name)
        value = node.outputs[0]
        self.rename(value, name)
        value.type, value.shape = onnx_ir.TensorType(tensor.dtype), onnx_ir.Shape(tensor.shape.numpy())
        value.const_value = tensor
        first = next(iter(graph), None)
        if first is None:
            graph.append(node)
        else:
            graph.insert_before(first, node)
        self._note_constant(value, tensor, graph)
        self._changed("constant")
        return value

    def expose(self, constants: Mapping[onnx_ir.Node, onnx_ir.TensorProtocol]) -> None:
        """Let Constant nodes, which may stand in bodies, be initializers of the main graph.

        Below IR version 4 they are inputs, too, as initializers are. They keep the names of the nodes'
        outputs; where several bodies use one name, the first keeps it.
        """
        graph, named = self.model.graph, []
        for node, tensor in constants.items():
            output = node.outputs[0]
            value = onnx_ir.Value(
                name=self.fresh_name("constant"),
                type=onnx_ir.TensorType(tensor.dtype),
                shape=onnx_ir.Shape(tensor.shape.numpy()),
                const_value=tensor,
                metadata_props=dict(output.metadata_props),
            )
            self.replace(output, value)
            self.remove(node)
            named.append((value, output.name or "constant"))
        for value, name in named:
            self.rename(value, name)
            graph.register_initializer(value)
            if self.model.ir_version < 4:
                graph.inputs.append(value)
            self._changed("constant")

    def takes_constant(
        self, graph: onnx_ir.Graph, dtype: onnx_ir.DataType, version: int | None = None
    ) -> bool:
        """Whether ``graph`` may hold a new constant of ``dtype``.

        Constants of functions are nodes, and before opset 9 Constant gave floating-point numbers only.
        Elsewhere runtimes make initializers of such nodes, and ask nothing of their types.

        Args:
            version: an opset that the graph is to have, instead of its own.
        """
        if self.scopes.function(graph) is None:
            return True
        version = version or normal_imports(self.scopes.imports(graph)).get("", 0)
        schema = operator_schema("", "Constant", version)
        return schema is None or f"tensor({dtype.name.lower()})" in schema.outputs[0].types

    def takes_constants_of(self, graph: onnx_ir.Graph, body: onnx_ir.Graph) -> bool:
        """Whether :meth:`hoist` and :meth:`absorb` may move the initializers of ``body`` into ``graph``."""
        return all(
            value.dtype is None or self.takes_constant(graph, value.dtype)
            for value in body.initializers.values()
        )

    def remove_initializer(self, value: onnx_ir.Value) -> None:
        """Drop an initializer that nothing reads; below IR version 4, its input too.

        One that an annotation or training info names stays.
        """
        if self.is_named(value):
            return
        graph = value.graph
        assert graph is not None and value.name is not None
        del graph.initializers[value.name]
        if value.is_graph_input():
            graph.inputs.remove(value)
        self._taken.free_values([value])
        self._changed("constant")

    def is_named(self, value: onnx_ir.Value) -> bool:
        """Whether an annotation or training info names ``value``, which has to stay for its sake."""
        if not name_references.has_names(self.model):
            return False
        if self._named[0] != self.epoch:
            self._named = self.epoch, name_references.named(self.model)
        return value.name in self._named[1]

    def to_input(self, value: onnx_ir.Value) -> None:
        """Let an initializer of the main graph be an input, the last one if it is not one yet."""
        graph, tensor = self.model.graph, value.const_value
        assert tensor is not None and value.name is not None
        del graph.initializers[value.name]
        value.const_value = None
        value.type = value.type or onnx_ir.TensorType(tensor.dtype)
        value.shape = value.shape or onnx_ir.Shape(tensor.shape.numpy())
        if not value.is_graph_input():
            graph.inputs.append(value)
        self._changed("input")

    def to_initializer(self, value: onnx_ir.Value, tensor: onnx_ir.TensorProtocol) -> None:
        """Let an input of the main graph be an initializer that holds ``tensor``, or one hold that instead.

        What is an initializer already stays an input if it is one, too; so do all below IR version 4.
        """
        graph = self.model.graph
        if value.is_initializer():
            value.const_value = tensor
        else:
            if self.model.ir_version >= 4:
                graph.inputs.remove(value)
            value.const_value = tensor
            value.shape = onnx_ir.Shape(tensor.shape.numpy())
            graph.register_initializer(value)
        self._changed("constant")

    def give_default(self, value: onnx_ir.Value, tensor: onnx_ir.TensorProtocol) -> None:
        """Let callers leave out ``value``, an input of the main graph, which is ``tensor`` then.

        Below IR version 4 that can't be told.
        """
        assert self.model.ir_version >= 4
        value.const_value = tensor
        self.model.graph.register_initializer(value)
        self._changed("constant")

    # Bodies ------------------------------------------------------------------------------

    def hoist(self, body: onnx_ir.Graph, holder: onnx_ir.Node) -> list[onnx_ir.Value]:
        """Move all of ``body`` in front of ``holder``, whose body it is; returns its outputs.

        The caller replaces the holder's outputs and removes it. ``body`` may have no inputs.
        """
        graph = graph_of(holder)
        nodes, outputs = self._emptied(body, graph)
        graph.insert_before(holder, nodes)
        self._changed("hoist")
        return outputs

    def absorb(self, body: onnx_ir.Graph, into: onnx_ir.Graph) -> list[onnx_ir.Value]:
        """Move all of ``body`` to the end of ``into``, another body; returns its outputs.

        The caller removes the node that held ``body``, which may have no inputs.
        """
        nodes, outputs = self._emptied(body, into)
        into.extend(nodes)
        self._changed("absorb")
        return outputs

    def _emptied(
        self, body: onnx_ir.Graph, into: onnx_ir.Graph
    ) -> tuple[list[onnx_ir.Node], list[onnx_ir.Value]]:
        """Empty ``body`` for ``into``, which gets its initializers; returns its nodes and outputs."""
        outputs = list(body.outputs)
        body.outputs.clear()
        for value in list(body.initializers.values()):
            del body.initializers[value.name or ""]
            self._taken.free_values([value])
            assert value.const_value is not None
            constant = self.constant(into, value.const_value, value.name or "constant")
            name_references.take_over(constant, value, name=True)
            if value.name != constant.name:
                name_references.rename(self.model, value.name or "", constant.name or "")
            outputs = [constant if output is value else output for output in outputs]
            replace_uses(value, constant)
        nodes = list(body)
        body.remove(nodes)
        for node in nodes:
            for output in node.outputs:
                if output.name and self._taken.is_shared(output):
                    self.rename(output, output.name)
        return nodes, outputs

    def add_input(
        self,
        name: str,
        dtype: onnx_ir.DataType,
        dims: Sequence[int | str | onnx_ir.SymbolicDim | None] | None,
    ) -> onnx_ir.Value:
        """Let the model take a further input, whose name must be free."""
        if self._taken.take_value(name) != name:
            raise ValueError(f"the model has a value {name!r} already")
        shape = None if dims is None else onnx_ir.Shape(dims)
        value = onnx_ir.Value(name=name, type=onnx_ir.TensorType(dtype), shape=shape)
        self.model.graph.inputs.append(value)
        self._changed("input")
        return value

    def add_output(self, body: onnx_ir.Graph, value: onnx_ir.Value) -> None:
        """Let ``body``, which a node holds, also return ``value``."""
        body.outputs.append(value)
        self._changed("output")

    def set_output(self, body: onnx_ir.Graph, index: int, value: onnx_ir.Value) -> None:
        """Let ``body``, which a node holds, return ``value`` at ``index``."""
        body.outputs[index] = value
        self._changed("output")

    def set_outputs(self, body: onnx_ir.Graph, values: Iterable[onnx_ir.Value]) -> None:
        """Let ``body``, which a node holds, return ``values``."""
        values = list(values)
        body.outputs.clear()
        body.outputs.extend(values)
        self._changed("output")

    def set_inputs(self, body: onnx_ir.Graph, values: Iterable[onnx_ir.Value]) -> None:
        """Let ``body``, which a node holds, take only those of its inputs; nothing may read the others."""
        values = list(values)
        self._taken.free_values(value for value in body.inputs if value not in values)
        body.inputs.clear()
        body.inputs.extend(values)
        self._changed("input")

    def lift(self, node: onnx_ir.Node, holder: onnx_ir.Node) -> None:
        """Move ``node`` out of a body of ``holder``, of which it reads nothing, in front of ``holder``."""
        graph_of(node).remove(node)
        for output in node.outputs:
            if output.name and self._taken.is_shared(output):
                self.rename(output, output.name)
        graph_of(holder).insert_before(holder, [node])
        self._changed("lift")

    def begin_body(self, around: onnx_ir.Graph, inputs: Sequence[onnx_ir.Value], name: str) -> onnx_ir.Graph:
        """A new, empty body for a node that is going to stand in ``around``.

        A body is written before the node that holds it: until it returns something, nothing is known of
        the outputs of that node.
        """
        body = onnx_ir.Graph(inputs, [], nodes=[], name=name)
        self.scopes.begin(body, around)
        return body

    def split_off(
        self,
        body: onnx_ir.Graph,
        nodes: Sequence[onnx_ir.Node],
        inputs: Sequence[onnx_ir.Value],
        outputs: Sequence[onnx_ir.Value],
        name: str,
        values: Mapping[onnx_ir.Value, onnx_ir.Value],
    ) -> onnx_ir.Graph:
        """A new body of ``nodes``, which leave ``body`` for it; the caller gives it to a node.

        Nothing that stays may read what they compute.

        Args:
            values: what they are to read instead of values of ``body``.
        """
        replace_within(nodes, values)
        body.remove(nodes)
        graph = onnx_ir.Graph(inputs, outputs, nodes=nodes, opset_imports=dict(body.opset_imports), name=name)
        graph.meta.update(body.meta)
        self._changed("split")
        return graph

    def remove_whole(self, node: onnx_ir.Node) -> None:
        """Remove ``node`` with all that its bodies hold, which would keep outer values alive."""
        for body in bodies(node):
            self.clear_body(body)
        self.remove(node)

    def clear_body(self, body: onnx_ir.Graph) -> None:
        """Remove all that ``body`` and the bodies in it hold, so that they keep no outer value alive.

        The node that holds ``body`` must be removed next.
        """
        for graph in reversed(list(with_bodies(body))):
            graph.outputs.clear()
            for node in list(reversed(graph)):
                self.remove(node)
            self._taken.free_values(graph.initializers.values())
