"""Replacement, renaming and declaration of values."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from graphopt.ir import name_references, provenance
from graphopt.ir._onnx_ir_without_sympy import onnx_ir
from graphopt.ir.editor.nodes import NodeEdits
from graphopt.ir.value_uses import readers, replace_uses


class ValueEdits(NodeEdits):
    """Edits of values."""

    def can_replace(self, old: onnx_ir.Value, new: onnx_ir.Value) -> bool:
        """Whether ``new`` can replace ``old`` without an Identity that keeps the name of an output."""
        return not old.is_graph_output() or self._can_be_output(old, new)

    def _can_be_output(self, old: onnx_ir.Value, new: onnx_ir.Value, *, restores: bool = False) -> bool:
        producer, own = new.producer(), old.producer()
        return (
            producer is not None
            and own is not None
            and not new.is_graph_output()
            and (producer.graph is own.graph or producer.graph is None)
            and (restores or self.trusts_shape(old) or all(reader is own for reader in readers(new)))
        )

    def replace(
        self,
        old: onnx_ir.Value,
        new: onnx_ir.Value,
        *,
        keep: Container[onnx_ir.Node] = frozenset(),
        restores: bool = False,
    ) -> None:
        """Replace ``old`` by ``new`` in all its readers, including readers in bodies.

        An output of the graph keeps its name and declared type: they are transferred to ``new``, or to an
        Identity of ``new``. The Identity is required if ``new`` is an input, an initializer, already an
        output, or a value of an outer graph, or if it has other readers, which must not rely on a
        declaration that may be wrong.

        Args:
            old: the replaced value.
            new: its replacement.
            keep: nodes that continue to read ``old``.
            restores: whether ``new`` was the graph output before ``old``, with the same declaration.
        """
        if old is new:
            return
        if (source := old.producer()) is not None:
            self.note_replaced(new, [source])
        name_references.transfer_annotation(new, old, name=False)
        keeps_name = not old.is_graph_output() or self._can_be_output(old, new, restores=restores)
        changed = replace_uses(old, new, keep)
        if old.is_graph_output():
            self._replace_output(old, new, keeps_name)
        self.log.freed([old])
        self._changed("replace", changed)
        for listener in self.listeners:
            listener.replaced(old, new)

    def note_replaced(self, new: onnx_ir.Value, sources: Iterable[onnx_ir.Node]) -> None:
        """Record that the producer of ``new`` also computes the results of ``sources``."""
        node = new.producer()
        if node is None:
            return
        for source in sources:
            if source is not node:
                self.derivations += 1
                provenance.absorb(node, source, self.actor, self.stage, self.derivations)

    def _replace_output(self, old: onnx_ir.Value, new: onnx_ir.Value, keeps_name: bool) -> None:
        producer = old.producer()
        graph = producer.graph if producer is not None else old.graph
        assert graph is not None
        if keeps_name:
            self.transfer_name(new, old)
        else:
            identity = self.make_node("Identity", [new], name=f"{old.name}_identity")
            self.append(graph, identity)
            new = identity.outputs[0]
            self.transfer_name(new, old)
        for _ in range(graph.outputs.count(old)):
            graph.outputs[graph.outputs.index(old)] = new

    def transfer_name(self, new: onnx_ir.Value, old: onnx_ir.Value) -> None:
        """Transfer the name and declarations of ``old`` to ``new``, and give ``old`` a fresh name.

        In bodies, ``new`` keeps its own shape if ``old`` does not declare one: the shape determines the rank
        of the scan outputs of a Loop without iterations.
        """
        name = old.name
        assert name is not None
        self._taken.free_values([new])
        old.name = self.fresh_name(f"{name}_replaced")
        new.name = name
        if old.shape is not None or old.graph is self.model.graph:
            new.shape = old.shape
        new.type, new.doc_string = old.type, old.doc_string
        name_references.transfer_annotation(new, old, name=True)
        if old.metadata_props:
            new.metadata_props.update(old.metadata_props)

    def rename(self, value: onnx_ir.Value, hint: str) -> None:
        """Rename ``value`` to an unused name: ``hint``, or ``hint_1`` and so on."""
        before = value.name
        self._taken.free_values([value])
        value.name = self.fresh_name(hint)
        if before:
            name_references.rename(self.model, before, value.name)
        self._changed("rename", [])

    def declare(
        self, value: onnx_ir.Value, dtype: onnx_ir.DataType, dims: Sequence[int | str | None] | None
    ) -> None:
        """Declare ``value`` as a tensor of ``dtype`` with ``dims``; ``None`` is an unknown dim or rank."""
        value.type, value.shape = onnx_ir.TensorType(dtype), None if dims is None else onnx_ir.Shape(dims)
        self._changed("declare")
