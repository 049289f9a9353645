"""Wrong declared shapes, which onnxruntime uses if other dims become constant."""

from __future__ import annotations

from graphopt import ir
from graphopt.context.context import Context


def drop_contradicted_shapes(cx: Context) -> None:
    """Drop the declared shapes of inner values of the graph and its bodies that contradict inferred ones.

    Exporters record the sizes of their example inputs. onnxruntime only warns if inference contradicts a
    declaration, and then uses the declaration: if the other dims are constant, its fusions insert a Reshape
    to the wrong size. A graph output keeps its declaration, which is part of the signature; its readers read
    a value without a declaration.
    """
    graph = cx.model.graph
    returned = dict.fromkeys(graph.outputs)
    for inner in list(ir.with_bodies(graph)):
        for node in list(inner):
            for value in node.outputs:
                if not cx.facts.contradicts_declaration(value):
                    continue
                if value in returned:
                    if not any(True for _ in ir.readers(value)):
                        continue
                    cx.edit.copy_output(value)
                value.shape = None
