"""The Editor: the one door through which a model is changed.

It keeps names unique and the interface whole, counts what was done, moves provenance along,
and tells listeners, so that analyses can stay up to date. What it does to nodes and values stands in
:mod:`graphopt.ir.edit_graph`, to constants and bodies in :mod:`graphopt.ir.edit_bodies`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from graphopt.ir import provenance
from graphopt.ir._onnx_ir import onnx_ir
from graphopt.ir.constants import IR_VERSION
from graphopt.ir.edit_bodies import BodyEditor, ConstantRefused
from graphopt.ir.edit_graph import Listener, graph_of

__all__ = ["ConstantRefused", "Editor", "Listener"]


class Editor(BodyEditor):
    """Changes ``model`` and nothing else does.

    Attributes:
        epoch: grows with every change; a cache made at another epoch is stale.
        counts: how many changes of each kind were made.
        tally: nodes that came less nodes that went, by domain and operator, since it was last cleared.
        declared_truly: whether the declared shape of an output is known to be right; real models
            carry wrong ones, which onnxruntime believes. All are trusted unless facts say otherwise.
    """

    # Notes -------------------------------------------------------------------------------

    def strip_notes(
        self,
        item: onnx_ir.Model | onnx_ir.Graph | onnx_ir.Function | onnx_ir.Node | onnx_ir.Value,
        prefixes: tuple[str, ...],
    ) -> int:
        """Remove the doc string of ``item``, and metadata whose key begins with one of ``prefixes``.

        Returns how many were removed.
        """
        keys = [key for key in item.metadata_props if key.startswith(prefixes)]
        for key in keys:
            del item.metadata_props[key]
        removed = len(keys) + bool(item.doc_string)
        if removed:
            item.doc_string = None
            self._changed("note")
        return removed

    def note(
        self,
        item: onnx_ir.Model | onnx_ir.Node | onnx_ir.Value | onnx_ir.Function,
        key: str,
        text: str | None,
    ) -> None:
        """Set an entry of the metadata of ``item``, or remove it where ``text`` is ``None``."""
        if item.metadata_props.get(key) != text:
            if text is None:
                del item.metadata_props[key]
            else:
                item.metadata_props[key] = text
            self._changed("note")

    # Versions ----------------------------------------------------------------------------

    def set_import(self, imports: dict[str, int], domain: str, version: int) -> None:
        """Let the ``opset_imports`` of the main graph or a function say ``version`` for ``domain``.

        Args:
            domain: ``""`` also stands for a domain that is spelt ``ai.onnx``.
        """
        spelt = "ai.onnx" if domain == "" and "ai.onnx" in imports and "" not in imports else domain
        if spelt in imports and imports[spelt] != version:
            imports[spelt] = version
            self._changed("import")

    def import_domain(self, node: onnx_ir.Node, version: int = 1) -> None:
        """Import the domain of ``node``, which stands in a graph, where no version of it is imported yet."""
        imports = self.scopes.imports(graph_of(node))
        if node.domain and node.domain not in imports:
            imports[node.domain] = version
            self._changed("import")

    def remove_import(self, imports: dict[str, int], domain: str) -> None:
        """Drop the import of a domain that nothing uses."""
        del imports[domain]
        self._changed("import")

    def raise_ir_version(self, version: int) -> None:
        """Raise the model's IR version. Initializers that had to be listed as inputs stay constants."""
        model = self.model
        if model.ir_version < 4 <= version:
            defaults = set(model.graph.initializers.values())
            for value in [value for value in model.graph.inputs if value in defaults]:
                model.graph.inputs.remove(value)
        model.ir_version = model.graph.meta[IR_VERSION] = version
        self._changed("version")

    # Functions ---------------------------------------------------------------------------

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
        """A new function; ``nodes``, which must read ``inputs`` already, leave their graph for it."""
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

    def redirect(self, call: onnx_ir.Node, function: onnx_ir.Function) -> None:
        """Let ``call`` call ``function``, of the same domain, instead of another one."""
        self.tally[call.domain, call.op_type] -= 1
        call.op_type, call.overload = function.name, function.overload
        self.tally[call.domain, call.op_type] += 1
        self._changed("redirect")

    def rename_function(self, function: onnx_ir.Function, calls: Iterable[onnx_ir.Node], name: str) -> None:
        """Give another name to a function that nothing but ``calls`` calls."""
        del self.model.functions[function.identifier()]
        function.name = name
        self.model.functions[function.identifier()] = function
        self._changed("function")
        for call in calls:
            self.redirect(call, function)

    def remove_function(self, function: onnx_ir.Function) -> None:
        """Drop a function that nothing calls."""
        del self.model.functions[function.identifier()]
        self._changed("function")

    def note_origin(self, nodes: Iterable[onnx_ir.Node], sources: Sequence[onnx_ir.Node], by: str) -> None:
        """Record that ``nodes`` were made out of ``sources`` by the rule or pass ``by``."""
        provenance.derive(nodes, sources, by)
