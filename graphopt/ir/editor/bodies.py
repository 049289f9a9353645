"""Creation, splitting, inlining and removal of bodies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from graphopt.ir import name_references
from graphopt.ir._onnx_ir_without_sympy import onnx_ir
from graphopt.ir.editor.constants import ConstantEdits
from graphopt.ir.editor.state import graph_of
from graphopt.ir.nested_graphs import bodies, with_bodies
from graphopt.ir.value_uses import replace_uses, replace_within


class BodyEdits(ConstantEdits):
    """Edits of bodies."""

    def begin_body(self, around: onnx_ir.Graph, inputs: Sequence[onnx_ir.Value], name: str) -> onnx_ir.Graph:
        """Create an empty body for a node that will be inserted into ``around``.

        A body is complete before its node is created, because the outputs of the node depend on the body's
        outputs.
        """
        body = onnx_ir.Graph(inputs, [], nodes=[], name=name)
        self.scopes.register_body(body, around)
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
        """Move ``nodes`` from ``body`` to a new body, which the caller attaches to a node.

        The remaining nodes must not read outputs of the moved nodes.

        Args:
            body: the body to move the nodes from.
            nodes: the nodes of the new body, in topological order.
            inputs, outputs, name: the interface and name of the new body.
            values: replacements for values of ``body`` that the nodes read.
        """
        replace_within(nodes, values)
        body.remove(nodes)
        graph = onnx_ir.Graph(inputs, outputs, nodes=nodes, opset_imports=dict(body.opset_imports), name=name)
        graph.meta.update(body.meta)
        self._changed("split")
        return graph

    def inline_body(self, body: onnx_ir.Graph, holder: onnx_ir.Node) -> list[onnx_ir.Value]:
        """Move the nodes of ``body`` before ``holder``, the node with this body; returns its outputs.

        The caller replaces the outputs of ``holder`` and removes it. ``body`` must have no inputs.
        """
        graph = graph_of(holder)
        nodes, outputs = self._empty_body(body, graph)
        graph.insert_before(holder, nodes)
        self._changed("hoist")
        return outputs

    def append_body(self, body: onnx_ir.Graph, into: onnx_ir.Graph) -> list[onnx_ir.Value]:
        """Move the nodes of ``body`` to the end of ``into``, another body; returns the outputs of ``body``.

        The caller removes the node with ``body``, which must have no inputs.
        """
        nodes, outputs = self._empty_body(body, into)
        into.extend(nodes)
        self._changed("absorb")
        return outputs

    def _empty_body(
        self, body: onnx_ir.Graph, into: onnx_ir.Graph
    ) -> tuple[list[onnx_ir.Node], list[onnx_ir.Value]]:
        """Empty ``body`` and move its initializers to ``into``; returns its nodes and outputs."""
        outputs = list(body.outputs)
        body.outputs.clear()
        for value in list(body.initializers.values()):
            del body.initializers[value.name or ""]
            self._taken.free_values([value])
            assert value.const_value is not None
            constant = self.constant(into, value.const_value, value.name or "constant")
            name_references.transfer_annotation(constant, value, name=True)
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

    def hoist(self, node: onnx_ir.Node, holder: onnx_ir.Node) -> None:
        """Move ``node``, which reads no values of its body, before ``holder``, the node with this body."""
        graph_of(node).remove(node)
        for output in node.outputs:
            if output.name and self._taken.is_shared(output):
                self.rename(output, output.name)
        graph_of(holder).insert_before(holder, [node])
        self._changed("lift")

    def remove_with_bodies(self, node: onnx_ir.Node) -> None:
        """Remove ``node`` and the nodes of its bodies, which would count as readers of outer values."""
        for body in bodies(node):
            self.clear_body(body)
        self.remove(node)

    def clear_body(self, body: onnx_ir.Graph) -> None:
        """Remove all nodes of ``body`` and of the bodies in it, which would count as readers of outer values.

        The node with ``body`` must be removed next.
        """
        for graph in reversed(list(with_bodies(body))):
            graph.outputs.clear()
            for node in list(reversed(graph)):
                self.remove(node)
            self._taken.free_values(graph.initializers.values())
