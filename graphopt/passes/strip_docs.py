"""strip-docs: what only people read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from graphopt import ir
from graphopt.context import Context
from graphopt.passes.base import Pass

#: How exporters' notes on where a node came from begin: stack traces, module paths.
_NOISE = ("pkg.torch", "pkg.onnxscript", "namespace", "torch.")


@dataclass(frozen=True)
class StripDocs(Pass):
    """Remove doc strings, and the notes that exporters leave on nodes, such as stack traces.

    That is: doc strings of the model, its graphs, functions, nodes and values, and metadata whose key
    begins with ``pkg.torch``, ``pkg.onnxscript``, ``namespace`` or ``torch.``, except the model's own,
    which programs read. Nothing is removed by default.
    """

    name: ClassVar[str] = "strip-docs"
    does: ClassVar[str] = "stripped"
    required: ClassVar[bool] = True

    def run(self, model: ir.Model, cx: Context) -> None:
        """Strip everything."""
        strip = cx.edit.strip_notes
        strip(model, ())
        for function in model.functions.values():
            strip(function, _NOISE)
        for graph in ir.graphs_of(model):
            strip(graph, _NOISE)
            for value in (*graph.inputs, *graph.outputs, *graph.initializers.values()):
                strip(value, _NOISE)
            for node in graph:
                strip(node, _NOISE)
                for value in node.outputs:
                    strip(value, _NOISE)
