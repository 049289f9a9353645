"""Declared shapes that gradients must not rely on.

onnxruntime warns about a declared shape that contradicts the computed one and plans memory with it, and then
fails or computes other numbers once something reads the shape. The model's own nodes may never do so.
"""

from __future__ import annotations

from graphopt import ir
from graphopt.context import Context


def drop_unproven_shapes(cx: Context) -> dict[ir.Value, ir.Value]:
    """Drop the declared shapes of computed values of the main graph that inference does not confirm.

    A graph output keeps its declaration: it becomes an Identity of a value without one.

    Returns:
        By copied value, the graph output.
    """
    graph, edit = cx.model.graph, cx.edit
    returned = dict.fromkeys(graph.outputs)
    copied: dict[ir.Value, ir.Value] = {}
    for node in list(graph):
        for value in node.outputs:
            if value.shape is None or edit.declared_truly(value):
                continue
            if value in returned:
                copied[value] = edit.copy_output(value)
            value.shape = None
    return copied
