"""Declared shapes that gradients must not rely on.

If a declared shape contradicts the computed one, onnxruntime only warns, and plans memory with the declared
shape. A node that reads the shape then fails or computes wrong numbers, even if no node of the original model
reads it.
"""

from __future__ import annotations

from graphopt import ir
from graphopt.context import Context


def drop_unproven_shapes(cx: Context) -> dict[ir.Value, ir.Value]:
    """Drop the declared shapes of computed values of the main graph that inference does not confirm.

    A graph output keeps its declaration: it becomes an Identity of a value without a declaration.

    Returns:
        The graph output that copies each value.
    """
    graph, edit = cx.model.graph, cx.edit
    returned = dict.fromkeys(graph.outputs)
    copied: dict[ir.Value, ir.Value] = {}
    for node in list(graph):
        for value in node.outputs:
            if value.shape is None or edit.trusts_shape(value):
                continue
            if value in returned:
                copied[value] = edit.copy_output(value)
            value.shape = None
    return copied
