"""Clone nodes and graphs, with substituted values and attributes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from graphopt.ir._onnx_ir_without_sympy import onnx_ir
from graphopt.ir.constants import IR_VERSION
from graphopt.ir.nested_graphs import bodies, with_bodies
from graphopt.ir.provenance import record_origin
from graphopt.util.lazy_dataclass import dataclass


def captures(graph: onnx_ir.Graph) -> list[onnx_ir.Value]:
    """The outer values that ``graph`` and its bodies read, in order of first use."""
    own = dict.fromkeys(with_bodies(graph))
    found: dict[onnx_ir.Value, None] = {}
    for nested in own:
        for values in (*(node.inputs for node in nested), nested.outputs):
            for value in values:
                if value is not None and value.graph not in own:
                    found[value] = None
    return list(found)


def captured(node: onnx_ir.Node) -> list[onnx_ir.Value]:
    """The outer values that the bodies of ``node`` read or return."""
    nested = bodies(node) if node.attributes else ()
    return list(dict.fromkeys(value for body in nested for value in captures(body)))


def reads(node: onnx_ir.Node) -> list[onnx_ir.Value]:
    """The inputs of ``node``, and the outer values that its bodies read."""
    return [*(value for value in node.inputs if value is not None), *captured(node)]


def _same(name: str) -> str:
    return name


@dataclass
class Cloner:
    """Clones nodes. Outer values that are not in ``values`` are shared with the originals.

    Attributes:
        values: replacements of values; ``None`` for an omitted input.
        attributes: replacements of references to a function's attributes, ``None`` for an absent attribute.
            If not given, references are kept.
        value_name: the name of a cloned value, from the original's.
        node_name: the name of a cloned node, from the original's.
        declarations: whether to copy declared types and shapes of inner values.
        origin: the names of the original nodes that a cloned node replaces; by default, the name of the
            original.
    """

    values: dict[onnx_ir.Value, onnx_ir.Value | None] = dataclasses.field(default_factory=dict)
    attributes: Mapping[str, onnx_ir.Attr | None] | None = None
    value_name: Callable[[str], str] = _same
    node_name: Callable[[str], str] = _same
    declarations: bool = True
    origin: Callable[[onnx_ir.Node], Iterable[str]] | None = None

    def nodes(self, nodes: Iterable[onnx_ir.Node]) -> list[onnx_ir.Node]:
        """Clones of ``nodes`` with their bodies, in order, outside of any graph."""
        nodes = list(nodes)
        self._declare(output for node in nodes for output in node.outputs)
        inner = self._bodies([body for node in nodes if node.attributes for body in bodies(node)])
        return [self._node(node, inner) for node in nodes]

    def graph(self, graph: onnx_ir.Graph) -> onnx_ir.Graph:
        """A clone of ``graph`` with its bodies."""
        return self._bodies([graph])[graph]

    def body(self, graph: onnx_ir.Graph, outputs: Iterable[onnx_ir.Value]) -> onnx_ir.Graph:
        """A clone of the main ``graph`` without inputs, which reads their replacements in :attr:`values`.

        Args:
            graph: the main graph.
            outputs: values of ``graph``, whose clones are the outputs.
        """
        own = [value for value in graph.initializers.values() if value not in self.values]
        self._declare(own)
        nodes = self.nodes(graph)
        return onnx_ir.Graph(
            [],
            [_present(self.value(value)) for value in outputs],
            nodes=nodes,
            initializers=[_present(self.values[value]) for value in own],
            name=graph.name,
        )

    def value(self, value: onnx_ir.Value) -> onnx_ir.Value | None:
        """The replacement of ``value`` in the clones."""
        return self.values.get(value, value)

    def _bodies(self, graphs: Iterable[onnx_ir.Graph]) -> dict[onnx_ir.Graph, onnx_ir.Graph]:
        """Clones of ``graphs`` and their bodies: first all values, then graphs, inner before outer."""
        nested = [inner for graph in graphs for inner in with_bodies(graph)]
        for graph in nested:
            self._declare(dict.fromkeys([*graph.inputs, *graph.initializers.values()]))
            self._declare(output for node in graph for output in node.outputs)
        done: dict[onnx_ir.Graph, onnx_ir.Graph] = {}
        for graph in reversed(nested):
            done[graph] = self._graph(graph, done)
        return done

    def _declare(self, values: Iterable[onnx_ir.Value]) -> None:
        for value in values:
            # onnxruntime relies on the declarations of inputs and outputs of bodies
            kept = self.declarations or value.is_graph_input() or value.is_graph_output()
            copy = onnx_ir.Value(
                name=self.value_name(value.name) if value.name else value.name,
                type=value.type if kept else None,
                shape=value.shape.copy() if kept and value.shape is not None else None,
                doc_string=value.doc_string,
                const_value=value.const_value,
                metadata_props=dict(value.metadata_props) if kept and value.metadata_props else None,
            )
            if value.meta:
                copy.meta.update(value.meta)
            self.values[value] = copy

    def _graph(self, graph: onnx_ir.Graph, inner: Mapping[onnx_ir.Graph, onnx_ir.Graph]) -> onnx_ir.Graph:
        copy = onnx_ir.Graph(
            [_present(self.values[value]) for value in graph.inputs],
            [_present(self.value(value)) for value in graph.outputs],
            nodes=[self._node(node, inner) for node in graph],
            initializers=[_present(self.values[value]) for value in graph.initializers.values()],
            doc_string=graph.doc_string,
            opset_imports=dict(graph.opset_imports),
            name=graph.name,
            metadata_props=dict(graph.metadata_props),
        )
        copy.meta.update(graph.meta)
        return copy

    def _node(self, node: onnx_ir.Node, inner: Mapping[onnx_ir.Graph, onnx_ir.Graph]) -> onnx_ir.Node:
        attributes = node.attributes.values() if node.attributes else ()
        copies = [self._attribute(attribute, inner) for attribute in attributes]
        copy = onnx_ir.Node(
            node.domain,
            node.op_type,
            [None if value is None else self.value(value) for value in node.inputs],
            [attribute for attribute in copies if attribute is not None],
            overload=node.overload,
            outputs=[_present(self.values[output]) for output in node.outputs],
            version=node.version,
            name=self.node_name(node.name) if node.name else node.name,
            doc_string=node.doc_string,
            metadata_props=dict(node.metadata_props) if node.metadata_props else None,
            device_configurations=tuple(map(self._device, node.device_configurations)),
        )
        if self.origin is not None:
            record_origin(copy, self.origin(node))
        return copy

    def _device(self, configuration: Any) -> Any:
        """The configuration with replaced values in its sharding specs."""
        specs = [
            dataclasses.replace(spec, value=self.value(spec.value)) if spec.value is not None else spec
            for spec in configuration.sharding_specs
        ]
        return dataclasses.replace(
            configuration, sharding_specs=tuple(spec for spec in specs if spec.value is not None)
        )

    def _attribute(
        self, attribute: onnx_ir.Attr, inner: Mapping[onnx_ir.Graph, onnx_ir.Graph]
    ) -> onnx_ir.Attr | None:
        if attribute.is_ref():
            return self._dereferenced(attribute)
        if attribute.type == onnx_ir.AttributeType.GRAPH:
            return onnx_ir.Attr(
                attribute.name, attribute.type, inner[attribute.value], doc_string=attribute.doc_string
            )
        if attribute.type == onnx_ir.AttributeType.GRAPHS:
            graphs = [inner[graph] for graph in attribute.value]
            return onnx_ir.Attr(attribute.name, attribute.type, graphs, doc_string=attribute.doc_string)
        return attribute

    def _dereferenced(self, reference: onnx_ir.Attr) -> onnx_ir.Attr | None:
        if self.attributes is None:
            return reference
        given = self.attributes.get(reference.ref_attr_name or "")
        if given is None:
            return None
        if given.is_ref():
            return onnx_ir.RefAttr(
                reference.name, given.ref_attr_name or "", reference.type, doc_string=reference.doc_string
            )
        value = given.value
        if given.type == onnx_ir.AttributeType.GRAPH:  # each use needs its own graph
            value = Cloner(value_name=self.value_name, node_name=self.node_name).graph(value)
        return onnx_ir.Attr(reference.name, given.type, value, doc_string=reference.doc_string)


def _present(value: onnx_ir.Value | None) -> onnx_ir.Value:
    assert value is not None
    return value


def clone(model: onnx_ir.Model) -> onnx_ir.Model:
    """A clone of ``model`` that shares only its tensors."""
    return model_of(Cloner().graph(model.graph), model)


def clone_function(function: onnx_ir.Function) -> onnx_ir.Function:
    """A clone of ``function`` that shares its tensors."""
    return onnx_ir.Function(
        function.domain,
        function.name,
        function.overload,
        graph=Cloner().graph(function.graph),
        attributes=list(function.attributes.values()),
    )


def model_of(graph: onnx_ir.Graph, model: onnx_ir.Model) -> onnx_ir.Model:
    """A model with main graph ``graph``, and the other fields and clones of the functions of ``model``."""
    if not graph.opset_imports:
        graph.opset_imports.update(model.opset_imports)
    graph.meta[IR_VERSION] = model.ir_version
    return onnx_ir.Model(
        graph,
        ir_version=model.ir_version,
        producer_name=model.producer_name,
        producer_version=model.producer_version,
        domain=model.domain,
        model_version=model.model_version,
        doc_string=model.doc_string,
        functions=[clone_function(function) for function in model.functions.values()],
        metadata_props=dict(model.metadata_props),
        device_configurations=model.device_configurations,
    )
