"""Metadata, doc strings and provenance."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from graphopt.ir import provenance
from graphopt.ir._onnx_ir_without_sympy import onnx_ir
from graphopt.ir.editor.state import EditorState


class MetadataEdits(EditorState):
    """Edits of metadata."""

    def note(
        self,
        item: onnx_ir.Model | onnx_ir.Node | onnx_ir.Value | onnx_ir.Function,
        key: str,
        text: str | None,
    ) -> None:
        """Set an entry of the metadata of ``item``, or remove it if ``text`` is ``None``."""
        if item.metadata_props.get(key) != text:
            if text is None:
                del item.metadata_props[key]
            else:
                item.metadata_props[key] = text
            self._changed("note")

    def strip_notes(
        self,
        item: onnx_ir.Model | onnx_ir.Graph | onnx_ir.Function | onnx_ir.Node | onnx_ir.Value,
        prefixes: tuple[str, ...],
    ) -> int:
        """Remove the doc string of ``item``, and metadata with one of the key ``prefixes``.

        Returns their number.
        """
        keys = [key for key in item.metadata_props if key.startswith(prefixes)]
        for key in keys:
            del item.metadata_props[key]
        removed = len(keys) + bool(item.doc_string)
        if removed:
            item.doc_string = None
            self._changed("note")
        return removed

    def remove_metadata(self, value: onnx_ir.Value, is_stale: Callable[[str], bool]) -> None:
        """Remove metadata with stale keys from ``value``."""
        stale = [key for key in value.metadata_props if is_stale(key)]
        for key in stale:
            del value.metadata_props[key]
        if stale:
            self._changed("forget")

    def end_rewrite(self) -> None:
        """End a rewrite: Constant nodes that it created get no origin from later rewrites."""
        self._new_constants.clear()

    def note_origin(self, nodes: Iterable[onnx_ir.Node], sources: Sequence[onnx_ir.Node], by: str) -> None:
        """Record that the rule or pass ``by`` derived ``nodes`` from ``sources``.

        Constant nodes that the current rewrite created for ``nodes`` have the same origin.
        """
        self.derivations += 1
        derived = [*nodes, *self._new_constants]
        self._new_constants.clear()
        provenance.derive(derived, sources, by, self.stage, self.derivations)

    def note_folding(self, constant: onnx_ir.Value, node: onnx_ir.Node) -> None:
        """Record that ``constant`` replaces an output of ``node``."""
        if constant.producer() is not None:
            self.note_origin([], [node], self.actor)
        provenance.record_folding(constant, node)
