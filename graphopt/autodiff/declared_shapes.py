"""Declared shapes that gradients must not rely on.

onnxruntime warns of a declared shape that contradicts a computation, plans with it, and fails, or gives other
numbers, once something reads the shape. Models whose own nodes never do so run.
"""

from __future__ import annotations

from graphopt import ir
from graphopt.context import Context


def drop_unproven_shapes(cx: Context) -> dict[ir.Value, ir.Value]:
    """Drop the declared shapes of computed values of the main graph that are not known to be right.

    An output keeps its declaration: an Identity bears it, and the value behind it is without.

    Returns:
        By such an output, the value that it is a copy of.
    """
    graph, edit = cx.model.graph, cx.edit
    returned = dict.fromkeys(graph.outputs)
    copied: dict[ir.Value, ir.Value] = {}
    for node in list(graph):
        for value in node.outputs:
            if value.shape is None or edit.declared_truly(value):
                continue
            if value in returned:
                copied[edit.copy_output(value)] = value
            value.shape = None
    return copied
