"""strip-docs: removal of documentation strings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from graphopt import ir
from graphopt.context import Context
from graphopt.passes.base import Pass
from graphopt.util.lazy_dataclass import dataclass
from graphopt.util.text_tables import counted

#: Key prefixes of exporters' annotations on the origin of nodes: stack traces, module paths.
_NOISE = ("pkg.torch", "pkg.onnxscript", "namespace", "torch.")


@dataclass(frozen=True)
class StripDocs(Pass):
    """Remove documentation strings and the annotations of exporters, such as stack traces.

    The pass removes the doc strings of the model, its graphs, functions, nodes and values, and metadata whose
    key begins with ``pkg.torch``, ``pkg.onnxscript``, ``namespace`` or ``torch.``. It keeps the metadata of
    the model itself, which programs read. No pipeline contains this pass by default.
    """

    name: ClassVar[str] = "strip-docs"
    does: ClassVar[str] = "stripped"
    required: ClassVar[bool] = True

    def run(self, model: ir.Model, cx: Context) -> None:
        """Remove all doc strings and annotations."""
        removed = cx.edit.strip_notes(model, ())
        removed += sum(cx.edit.strip_notes(item, _NOISE) for item in _annotated(model))
        if removed:
            cx.remarks.append(f"removed {counted(removed, 'doc string or note', 'doc strings and notes')}")


def _annotated(model: ir.Model) -> Iterator[ir.Function | ir.Graph | ir.Node | ir.Value]:
    """All objects with metadata, except the model itself."""
    yield from model.functions.values()
    for graph in ir.graphs_of(model):
        yield graph
        yield from (*graph.inputs, *graph.outputs, *graph.initializers.values())
        for node in graph:
            yield node
            yield from node.outputs
