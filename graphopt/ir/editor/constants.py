"""Creation and removal of constants."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from graphopt.ir import name_references
from graphopt.ir._onnx_ir_without_sympy import onnx_ir
from graphopt.ir.editor.values import ValueEdits
from graphopt.ir.initializer_reads import read_record_of
from graphopt.ir.nested_graphs import normal_imports
from graphopt.ir.schema_checks import operator_schema


class ConstantRefused(Exception):
    """The graph does not support constants of this type (:meth:`Editor.supports_constant`)."""


class ConstantEdits(ValueEdits):
    """Edits of constants: initializers, or Constant nodes in graphs without initializers."""

    def constant(
        self, graph: onnx_ir.Graph, data: np.ndarray | np.generic | onnx_ir.TensorProtocol, name: str
    ) -> onnx_ir.Value:
        """Create a constant of ``graph`` with the given contents.

        The constant is an initializer. In functions, which have no initializers, and below IR version 4,
        where initializers are inputs, it is a Constant node at the start of the graph.

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
        self._changed("constant", [])
        return value

    def _note_constant(
        self, value: onnx_ir.Value, tensor: onnx_ir.TensorProtocol, graph: onnx_ir.Graph
    ) -> None:
        record = read_record_of(self.model)
        if record is not None:
            record.note_constant(value, tensor, graph)

    def constant_node(
        self, graph: onnx_ir.Graph, data: np.ndarray | np.generic | onnx_ir.TensorProtocol, name: str
    ) -> onnx_ir.Value:
        """Like :meth:`constant`, but always a Constant node at the start of ``graph``."""
        tensor = _tensor(data)
        if not self.supports_constant(graph, tensor.dtype):
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
        self._new_constants.append(node)
        self._changed("constant", [node])
        return value

    def expose(self, constants: Mapping[onnx_ir.Node, onnx_ir.TensorProtocol]) -> None:
        """Convert Constant nodes, which may be in bodies, to initializers of the main graph.

        Below IR version 4, they also become inputs, like all initializers. They have the names of the nodes'
        outputs; if several bodies use a name, only the first constant keeps the name.
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

    def supports_constant(
        self, graph: onnx_ir.Graph, dtype: onnx_ir.DataType, version: int | None = None
    ) -> bool:
        """Whether ``graph`` supports a new constant of ``dtype``.

        Constants of functions are nodes; before opset 9, Constant supports floating-point types only. In
        other graphs, runtimes convert Constant nodes to initializers without checking their types.

        Args:
            graph: the graph.
            dtype: element type of the constant.
            version: opset version to assume for the graph; by default its own.
        """
        if self.scopes.function(graph) is None:
            return True
        version = version or normal_imports(self.scopes.imports(graph)).get("", 0)
        schema = operator_schema("", "Constant", version)
        return schema is None or f"tensor({dtype.name.lower()})" in schema.outputs[0].types

    def supports_constants_of(self, graph: onnx_ir.Graph, body: onnx_ir.Graph) -> bool:
        """Whether ``graph`` supports the initializers that :meth:`inline_body` would move from ``body``."""
        return all(
            value.dtype is None or self.supports_constant(graph, value.dtype)
            for value in body.initializers.values()
        )

    def remove_initializer(self, value: onnx_ir.Value) -> None:
        """Remove an unread initializer; below IR version 4, also its input.

        An initializer that an annotation or training info refers to is kept.
        """
        if self.is_named(value):
            return
        graph = value.graph
        assert graph is not None and value.name is not None
        del graph.initializers[value.name]
        if value.is_graph_input():
            graph.inputs.remove(value)
        self._taken.free_values([value])
        self._changed("constant", [])

    def is_named(self, value: onnx_ir.Value) -> bool:
        """Whether an annotation or training info refers to ``value`` by name, so that it must be kept."""
        if not name_references.has_names(self.model):
            return False
        if self._referenced[0] != self.epoch:
            self._referenced = self.epoch, name_references.named(self.model)
        return value.name in self._referenced[1]


def _tensor(data: np.ndarray | np.generic | onnx_ir.TensorProtocol) -> onnx_ir.TensorProtocol:
    """``data`` as a tensor in native byte order."""
    if not isinstance(data, np.ndarray | np.generic):
        return data
    array = np.asarray(data)
    return onnx_ir.Tensor(array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("=")))
