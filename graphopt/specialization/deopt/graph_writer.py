"""A graph builder: appends new nodes, and copies of nodes of another model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from math import prod
from typing import Any

import numpy as np

from graphopt import ir
from graphopt.errors import UnsupportedModel
from graphopt.ir.signature import text_of_type
from graphopt.specialization.deopt.liveness import is_fixed
from graphopt.util.lazy_dataclass import dataclass

#: Maximum number of elements of a constant of zeros; larger ones are computed by ConstantOfShape.
_MOST_ZEROS = 64


@dataclass(frozen=True)
class Writer:
    """Appends nodes to ``graph``.

    Attributes:
        edit: the editor of the new model.
        graph: the main graph of the new model, or a body.
        copier: maps values of the other model to their copies.
        constants: copies of its tensors, in the main graph, by identity.
    """

    edit: ir.Editor
    graph: ir.Graph
    copier: ir.Cloner
    constants: dict[int, ir.Value] = field(default_factory=dict)

    @classmethod
    def of(cls, model: ir.Model) -> Writer:
        """A writer of the main graph of ``model``, whose output names are reserved."""
        edit = ir.Editor(model)
        for output in model.graph.outputs:
            edit.fresh_name(output.name or "")
        copier = ir.Cloner(value_name=edit.fresh_name, node_name=edit.fresh_node_name)
        return cls(edit, model.graph, copier)

    def in_graph(self, graph: ir.Graph) -> Writer:
        """A writer of another graph of the new model, which shares this writer's state."""
        return replace(self, graph=graph)

    def with_values(self, values: Mapping[ir.Value, ir.Value | None]) -> Writer:
        """This writer with another mapping of values to their copies."""
        return replace(self, copier=replace(self.copier, values=dict(values)))

    # Copies -------------------------------------------------------------------------------

    def lookup(self, value: ir.Value) -> ir.Value:
        """The copy of ``value`` of the other model; constants are copied to the main graph on demand."""
        found = self.copier.values.get(value)
        if found is None:
            tensor = ir.constant_of(value) or (value.const_value if is_fixed(value) else None)
            assert tensor is not None, f"{value.name!r} is not there"
            found = self.constants.get(id(tensor))
            if found is None:
                found = self.edit.constant(self.edit.model.graph, tensor, value.name or "constant")
                self.constants[id(tensor)] = found
            self.copier.values[value] = found
        return found

    def copy(self, nodes: Sequence[ir.Node]) -> None:
        """Append copies of ``nodes``, in their order."""
        self._prepare(value for node in nodes for value in ir.reads(node))
        for node in self.copier.nodes(nodes):
            self.edit.append(self.graph, node)

    def copy_body(self, body: ir.Graph) -> ir.Graph:
        """A copy of ``body``, for a new node. The mapping of outer values is not changed."""
        self._prepare(ir.captures(body))
        return self.with_values(self.copier.values).copier.graph(body)

    def _prepare(self, values: Iterable[ir.Value]) -> None:
        """Copy the constants among ``values`` that are not copied along with the nodes."""
        for value in values:
            if value not in self.copier.values and is_fixed(value):
                self.lookup(value)

    # Nodes --------------------------------------------------------------------------------

    def node(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: Mapping[str, Any] | None = None,
        *,
        outputs: int = 1,
        name: str,
    ) -> ir.Node:
        """Append a node."""
        node = self.edit.make_node(op_type, inputs, attributes or {}, outputs=outputs, name=name)
        self.edit.append(self.graph, node)
        return node

    def value(
        self, op_type: str, inputs: Sequence[ir.Value], attributes: Mapping[str, Any] | None = None
    ) -> ir.Value:
        """Append a node with one output; returns the output."""
        return self.node(op_type, inputs, attributes, name=f"bailout_{op_type}").outputs[0]

    def constant(self, number: int | bool | Sequence[int]) -> ir.Value:
        """A constant of type int64 or bool."""
        data = np.array(number, bool if isinstance(number, bool) else np.int64)
        return self.edit.constant(self.edit.model.graph, data, "bailout_number")

    def identity(self, value: ir.Value) -> ir.Value:
        """Append an Identity of ``value``.

        Raises:
            UnsupportedModel: Identity of this opset does not support the type.
        """
        since = 14 if isinstance(value.type, ir.SequenceType) else 16
        if value.type is not None and not isinstance(value.type, ir.TensorType) and self.version < since:
            raise UnsupportedModel(
                f"can't exit there: {value.name!r} is not a tensor, and Identity supports that"
                f" from opset {since} only"
            )
        copy = self.value("Identity", [value])
        copy.type = value.type
        return copy

    def unsqueeze(self, value: ir.Value) -> ir.Value:
        """Append an Unsqueeze that inserts a first dim."""
        if self.version < 13:
            return self.value("Unsqueeze", [value], {"axes": [0]})
        return self.value("Unsqueeze", [value, self.constant([0])])

    def if_else(
        self,
        condition: ir.Value,
        then: Callable[[Writer], Sequence[ir.Value]],
        other: Callable[[Writer], Sequence[ir.Value]],
        types: Sequence[ir.TypeProtocol | None],
    ) -> list[ir.Value]:
        """Append an If; the functions write its branches, and return values of ``types``."""
        graphs = [ir.Graph([], [], nodes=[], name=name) for name in ("then", "otherwise")]
        branches = dict(zip(("then_branch", "else_branch"), graphs, strict=True))
        node = self.node("If", [condition], branches, outputs=len(types), name="bailout_If")
        for graph, write in zip(graphs, (then, other), strict=True):
            writer = self.in_graph(graph)
            writer.set_outputs(write(writer), types)
        for output, type_ in zip(node.outputs, types, strict=True):
            output.type = type_
        return list(node.outputs)

    def set_outputs(self, values: Sequence[ir.Value], types: Sequence[ir.TypeProtocol | None]) -> None:
        """Set the outputs of a body; inserts Identities for repeated, outer and input values."""
        found: list[ir.Value] = []
        for value, type_ in zip(values, types, strict=True):
            producer = value.producer()
            if producer is None or producer.graph is not self.graph or value in found:
                value = self.identity(value)
            value.type = value.type or type_
            found.append(value)
        self.edit.set_outputs(self.graph, found)

    def set_main_outputs(self, values: Sequence[ir.Value]) -> None:
        """Set the outputs of the main graph, keeping their names."""
        returned: dict[ir.Value, None] = {}
        for index, (value, output) in enumerate(zip(values, list(self.graph.outputs), strict=True)):
            if value.name != output.name:
                producer = value.producer()
                if producer is None or producer.graph is not self.graph or value in returned:
                    value = self.identity(value)
                self.edit.transfer_name(value, output)
            returned[value] = None
            self.edit.set_output(self.graph, index, value)
        ir.sort_model(self.edit.model)

    def placeholder(self, type_: ir.TypeProtocol, dims: Sequence[int] | None) -> ir.Value:
        """An unused value of this type and these sizes, in the main graph."""
        main = self.in_graph(self.edit.model.graph)
        if isinstance(type_, ir.TensorType):
            shape, dtype = (0,) if dims is None else tuple(dims), type_.dtype
            if prod(shape) > _MOST_ZEROS and dtype is not ir.DataType.STRING:
                zero = ir.Tensor(np.zeros(1, dtype.numpy()), dtype=dtype)
                return main.value("ConstantOfShape", [self.constant(shape)], {"value": zero})
            if dtype is ir.DataType.STRING:
                data: ir.TensorProtocol = ir.StringTensor([b""] * prod(shape), shape=ir.Shape(shape))
            else:
                data = ir.Tensor(np.zeros(shape, dtype.numpy()), dtype=dtype)
            return self.edit.constant(main.graph, data, "bailout_nothing")
        if isinstance(type_, ir.SequenceType) and isinstance(type_.elem_type, ir.TensorType):
            return main.value("SequenceEmpty", [], {"dtype": type_.elem_type.dtype})
        raise UnsupportedModel(f"can't exit there: no placeholder of type {text_of_type(type_)} exists")

    @property
    def version(self) -> int:
        """The version of the default opset."""
        imports = self.edit.model.opset_imports
        return ir.standard_version(imports)
