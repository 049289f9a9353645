"""Creation, renaming and removal of functions, and the callees of calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from graphopt.ir._onnx_ir_without_sympy import onnx_ir
from graphopt.ir.editor.state import EditorState, graph_of


class FunctionEdits(EditorState):
    """Edits of functions."""

    def make_function(
        self,
        domain: str,
        name: str,
        inputs: Sequence[onnx_ir.Value],
        outputs: Sequence[onnx_ir.Value],
        nodes: Sequence[onnx_ir.Node],
        attributes: Sequence[onnx_ir.Attr],
        imports: Mapping[str, int],
    ) -> onnx_ir.Function:
        """Create a function from ``nodes``, which already read ``inputs``, and move them from their graph."""
        if nodes:
            graph_of(nodes[0]).remove(nodes)
        for node in nodes:
            self.tally[node.domain, node.op_type] -= 1
        graph = onnx_ir.Graph(inputs, outputs, nodes=nodes, opset_imports=dict(imports), name=name)
        function = onnx_ir.Function(domain, name, graph=graph, attributes=attributes)
        self.model.functions[function.identifier()] = function
        self.scopes.adopt_function(function)
        self._changed("function")
        return function

    def add_function(self, function: onnx_ir.Function) -> None:
        """Add ``function``, whose nodes are in no other graph; it replaces a function of the same name."""
        self.model.functions[function.identifier()] = function
        self.model.opset_imports.setdefault(function.domain, 1)
        self.scopes.adopt_function(function)
        self._changed("function")

    def redirect(self, call: onnx_ir.Node, function: onnx_ir.Function) -> None:
        """Change the callee of ``call`` to ``function``, which has the same domain."""
        self.tally[call.domain, call.op_type] -= 1
        call.op_type, call.overload = function.name, function.overload
        self.tally[call.domain, call.op_type] += 1
        self._changed("redirect")

    def rename_function(self, function: onnx_ir.Function, calls: Iterable[onnx_ir.Node], name: str) -> None:
        """Rename a function; ``calls`` are all its calls."""
        del self.model.functions[function.identifier()]
        function.name = name
        self.model.functions[function.identifier()] = function
        self._changed("function")
        for call in calls:
            self.redirect(call, function)

    def remove_function(self, function: onnx_ir.Function) -> None:
        """Remove a function without calls."""
        del self.model.functions[function.identifier()]
        self._changed("function")
