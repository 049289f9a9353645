"""Opset imports and the IR version."""

from __future__ import annotations

from graphopt.ir._onnx_ir_without_sympy import onnx_ir
from graphopt.ir.constants import IR_VERSION
from graphopt.ir.editor.state import EditorState, graph_of


class VersionEdits(EditorState):
    """Edits of opset imports and of the IR version."""

    def set_import(self, imports: dict[str, int], domain: str, version: int) -> None:
        """Set the imported version of ``domain``, if it is imported.

        Args:
            imports: ``opset_imports`` of the main graph or a function.
            domain: ``""`` is equivalent to ``ai.onnx``.
            version: the new version.
        """
        key = "ai.onnx" if domain == "" and "ai.onnx" in imports and "" not in imports else domain
        if key in imports and imports[key] != version:
            imports[key] = version
            self._changed("import")

    def import_domain(self, node: onnx_ir.Node) -> None:
        """Import version 1 of the domain of ``node`` in its graph, unless a version is imported already."""
        imports = self.scopes.imports(graph_of(node))
        if node.domain and node.domain not in imports:
            imports[node.domain] = 1
            self._changed("import")

    def remove_import(self, imports: dict[str, int], domain: str) -> None:
        """Remove the import of an unused domain."""
        del imports[domain]
        self._changed("import")

    def raise_ir_version(self, version: int) -> None:
        """Raise the model's IR version. Initializers that had to be inputs remain constants."""
        model = self.model
        if model.ir_version < 4 <= version:
            defaults = set(model.graph.initializers.values())
            for value in [value for value in model.graph.inputs if value in defaults]:
                model.graph.inputs.remove(value)
        model.ir_version = model.graph.meta[IR_VERSION] = version
        self._changed("version")
