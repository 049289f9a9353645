"""Creation, insertion and removal of nodes; changes of their operands, attributes and outputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from graphopt.ir._onnx_ir_without_sympy import onnx_ir
from graphopt.ir.attributes import make_attributes
from graphopt.ir.editor.state import EditorState, detach, graph_of
from graphopt.ir.nested_graphs import bodies
from graphopt.ir.value_uses import clear_inputs, is_read, replace_inputs, replace_uses


class NodeEdits(EditorState):
    """Edits of nodes, their operands, attributes and outputs."""

    def make_node(
        self,
        op_type: str,
        inputs: Sequence[onnx_ir.Value | None],
        attributes: Mapping[str, Any] | Iterable[onnx_ir.Attr] = (),
        *,
        domain: str = "",
        overload: str = "",
        outputs: int = 1,
        name: str,
    ) -> onnx_ir.Node:
        """Create a node outside of any graph, to be inserted by :meth:`insert_before` or :meth:`append`.

        Args:
            op_type: operator.
            inputs: operands.
            attributes: Python values by name (``None`` omits one), or attributes.
            domain: the operator's domain.
            overload: the function's overload.
            outputs: the number of outputs.
            name: hint for the node's name, from which the names of outputs are derived.
        """
        node_name = self.fresh_node_name(name)
        values = [onnx_ir.Value(name=self.fresh_name(f"{node_name}_output_{i}")) for i in range(outputs)]
        return onnx_ir.Node(
            domain,
            op_type,
            inputs,
            make_attributes(attributes),
            overload=overload,
            outputs=values,
            name=node_name,
        )

    def discard(self, node: onnx_ir.Node) -> None:
        """Discard a node from :meth:`make_node` that was never inserted."""
        clear_inputs(node)
        self._taken.free_node(node)

    def insert_before(self, place: onnx_ir.Node, nodes: Sequence[onnx_ir.Node]) -> None:
        """Insert ``nodes``, in order, directly before ``place``."""
        graph = graph_of(place)
        graph.insert_before(place, nodes)
        self._adopt(nodes)
        self._changed("insert", nodes)

    def insert_after(self, place: onnx_ir.Node, nodes: Sequence[onnx_ir.Node]) -> None:
        """Insert ``nodes``, in order, directly after ``place``."""
        graph_of(place).insert_after(place, nodes)
        self._adopt(nodes)
        self._changed("insert", nodes)

    def append(self, graph: onnx_ir.Graph, node: onnx_ir.Node) -> None:
        """Insert ``node`` at the end of ``graph``."""
        graph.append(node)
        self._adopt([node])
        self._changed("insert", [node])

    def move_after(self, place: onnx_ir.Node, nodes: Sequence[onnx_ir.Node]) -> None:
        """Move ``nodes`` of the same graph, in order, directly after ``place``."""
        graph = graph_of(place)
        graph.remove(nodes)
        graph.insert_after(place, nodes)
        self._changed("move", [])

    def reorder(self, graph: onnx_ir.Graph, nodes: Sequence[onnx_ir.Node]) -> None:
        """Reorder the nodes of ``graph``; ``nodes`` has all of them in topological order."""
        if list(graph) != list(nodes):
            graph.remove(nodes)
            graph.extend(nodes)
            self._changed("move", [])

    def interpose(self, value: onnx_ir.Value, node: onnx_ir.Node) -> None:
        """Insert ``node``, a reader of ``value``, between ``value`` and its other readers.

        Graph outputs still return ``value`` itself. Listeners are not notified: facts about the output of
        ``node`` need not hold for ``value``.
        """
        producer, graph = value.producer(), value.graph
        if producer is not None:
            graph_of(producer).insert_after(producer, [node])
        else:
            assert graph is not None, f"value {value.name!r} is in no graph"
            graph.insert_before(graph[0], [node])
        self._adopt([node])
        replace_uses(value, node.outputs[0], {node})
        self._changed("insert")

    def _adopt(self, nodes: Iterable[onnx_ir.Node]) -> None:
        for node in nodes:
            self.tally[node.domain, node.op_type] += 1
            if node.attributes and bodies(node):
                self.scopes.adopt(node)

    def remove(self, node: onnx_ir.Node) -> None:
        """Remove ``node``, whose outputs must be unread, from its graph."""
        graph = graph_of(node)
        if any(map(is_read, node.outputs)):
            raise ValueError(f"node {node.name!r} can't be removed: its outputs are read")
        self.log.freed(node.inputs)
        clear_inputs(node)
        detach(graph, node)
        self.tally[node.domain, node.op_type] -= 1
        self._taken.free_node(node)
        self._changed("remove", [])

    def set_input(self, node: onnx_ir.Node, index: int, value: onnx_ir.Value | None) -> None:
        """Set input ``index`` of ``node`` to ``value``."""
        if index >= len(node.inputs):
            node.resize_inputs(index + 1)
        self.log.freed([node.inputs[index]])
        replace_inputs(node, {index: value})
        self._changed("input", [node])

    def trim_inputs(self, node: onnx_ir.Node, size: int) -> None:
        """Remove the inputs of ``node`` beyond the first ``size``."""
        self.log.freed(node.inputs[size:])
        replace_inputs(node, dict.fromkeys(range(size, len(node.inputs))))
        node.resize_inputs(size)
        self._changed("input", [node])

    def set_attribute(self, node: onnx_ir.Node, name: str, value: Any) -> None:
        """Set attribute ``name`` of ``node`` to a Python value; ``None`` removes it."""
        if value is None:
            node.attributes.pop(name, None)
        else:
            node.attributes.add(make_attributes({name: value})[0])
        self._changed("attribute", [node])

    def add_node_output(self, node: onnx_ir.Node, index: int) -> onnx_ir.Value:
        """Add the optional output ``index`` to ``node``."""
        count = len(node.outputs)
        if index >= count:
            node.resize_outputs(index + 1)
        for place in range(count, index):
            node.outputs[place].name = ""
        output = node.outputs[index]
        output.name = self.fresh_name(f"{node.name or node.op_type}_output_{index}")
        self._changed("output", [node])
        return output

    def remove_node_output(self, node: onnx_ir.Node, index: int) -> None:
        """Remove the optional output ``index``, which must be unread, from ``node``."""
        output = node.outputs[index]
        assert not is_read(output) and not output.is_graph_output()
        self._taken.free_values([output])
        output.name, output.type, output.shape = "", None, None
        count = len(node.outputs)
        while count and not node.outputs[count - 1].name:
            count -= 1
        node.resize_outputs(count)
        self._changed("output", [node])
