"""The inputs and outputs of the model, its bodies and functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from graphopt.ir._onnx_ir_without_sympy import onnx_ir
from graphopt.ir.body_outputs import outputs_to_copy
from graphopt.ir.editor.values import ValueEdits
from graphopt.ir.nested_graphs import bodies, graphs_of
from graphopt.ir.provenance import label


class InputOutputEdits(ValueEdits):
    """Edits of the inputs and outputs of graphs."""

    def add_input(
        self,
        name: str,
        dtype: onnx_ir.DataType,
        dims: Sequence[int | str | onnx_ir.SymbolicDim | None] | None,
    ) -> onnx_ir.Value:
        """Add an input to the model. Raises ValueError if its name is taken."""
        if self._taken.reserve_value(name) != name:
            raise ValueError(f"the model has a value {name!r} already")
        shape = None if dims is None else onnx_ir.Shape(dims)
        value = onnx_ir.Value(name=name, type=onnx_ir.TensorType(dtype), shape=shape)
        self.model.graph.inputs.append(value)
        self._changed("input")
        return value

    def to_input(self, value: onnx_ir.Value) -> None:
        """Convert an initializer of the main graph to an input, which is added last unless it exists."""
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
        """Convert an input of the main graph to an initializer, or set the contents of an initializer.

        Overridable initializers, and all initializers below IR version 4, remain inputs.
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

    def set_default(self, value: onnx_ir.Value, tensor: onnx_ir.TensorProtocol) -> None:
        """Set the default of ``value``, an input of the main graph, to ``tensor``.

        Not representable below IR version 4.
        """
        assert self.model.ir_version >= 4
        value.const_value = tensor
        self.model.graph.register_initializer(value)
        self._changed("constant")

    def fix(self, value: onnx_ir.Value) -> None:
        """Make ``value``, an overridable initializer, a constant, which is no longer an input."""
        assert value.is_initializer() and self.model.ir_version >= 4
        self.model.graph.inputs.remove(value)
        self._changed("input")

    def set_inputs(self, body: onnx_ir.Graph, values: Iterable[onnx_ir.Value]) -> None:
        """Set the inputs of ``body`` to ``values``; removed inputs must be unread."""
        values = list(values)
        self._taken.free_values(value for value in body.inputs if value not in values)
        body.inputs.clear()
        body.inputs.extend(values)
        self._changed("input")

    def add_output(self, body: onnx_ir.Graph, value: onnx_ir.Value) -> None:
        """Add ``value`` to the outputs of ``body``, as :meth:`set_outputs` does."""
        if body is not self.model.graph and value in body.outputs:
            value = self._copy_in(body, value)
        body.outputs.append(value)
        self._changed("output")

    def set_output(self, body: onnx_ir.Graph, index: int, value: onnx_ir.Value) -> None:
        """Set output ``index`` of ``body`` to ``value``."""
        body.outputs[index] = value
        self._changed("output")

    def set_outputs(self, body: onnx_ir.Graph, values: Iterable[onnx_ir.Value]) -> None:
        """Set the outputs of ``body``, the main graph, or a function to ``values``.

        Except in the main graph, a repeated value is replaced by a copy: functions can't repeat an output,
        and onnxruntime leaves repeated outputs of branches unwritten.
        """
        values = list(values)
        if body is not self.model.graph:
            found: dict[onnx_ir.Value, None] = {}
            for value in values:
                found[self._copy_in(body, value) if value in found else value] = None
            values = list(found)
        body.outputs.clear()
        body.outputs.extend(values)
        self._changed("output")

    def return_copies(self) -> None:
        """Let all bodies return copies where onnxruntime requires them, after edits without the Editor."""
        for holder in [node for graph in graphs_of(self.model) for node in graph if node.domain == ""]:
            for body in bodies(holder) if holder.attributes else ():
                for index in outputs_to_copy(holder.op_type, body.inputs, body.outputs):
                    value = body.outputs[index]
                    if value.type is None or isinstance(value.type, onnx_ir.TensorType):
                        self.set_output(body, index, self._copy_in(body, value))

    def _copy_in(self, body: onnx_ir.Graph, value: onnx_ir.Value) -> onnx_ir.Value:
        """A copy of ``value``, computed at the end of ``body``."""
        node = self.make_node("Identity", [value], name=f"{value.name}_copy")
        self.append(body, node)
        copy = node.outputs[0]
        copy.type, copy.shape = value.type, None if value.shape is None else value.shape.copy()
        return copy

    def copy_output(self, output: onnx_ir.Value) -> onnx_ir.Value:
        """Replace ``output`` of the main graph by a copy with its name and declaration."""
        graph, producer = self.model.graph, output.producer()
        if producer is not None and not producer.name:  # messages name the node by its output
            producer.name = self.fresh_node_name(label(producer))
        node = self.make_node("Identity", [output], name=f"{output.name}_copy")
        self.append(graph, node)
        copy = node.outputs[0]
        self.transfer_name(copy, output)
        for index, value in enumerate(graph.outputs):
            if value is output:
                graph.outputs[index] = copy
        self._changed("output")
        return copy
