"""Residuals with a data-dependent rank.

Inputs and outputs of an ONNX model have a rank. A value of unknown rank is passed from the forward to the
backward model as a vector of its elements and its shape, and restored by a Reshape for its readers.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from graphopt import ir
from graphopt.context import Context

#: First opset with ``allowzero`` of Reshape.
_ALLOWS_ZERO = 14


def flatten_unranked(nodes: Iterable[ir.Node], cx: Context) -> dict[ir.Value, tuple[ir.Value, ir.Value]]:
    """Flatten and restore the outputs of unknown rank of ``nodes`` of the main graph.

    Below opset 14, the model is unchanged.

    Returns:
        A mapping from each such value, and from its restored copy, to its elements and its shape. The
        elements are a vector, the shape is an int64 vector.
    """
    edit = cx.edit
    found: dict[ir.Value, tuple[ir.Value, ir.Value]] = {}
    if ir.standard_version(cx.model.opset_imports) < _ALLOWS_ZERO:
        return found
    values = [value for node in nodes for value in node.outputs if _is_unranked(value, cx)]
    if not values:
        return found
    flat = edit.constant(cx.model.graph, np.array([-1]), "one_axis")
    for value in values:
        name = value.name or "value"
        elements = edit.make_node("Reshape", [value, flat], name=f"{name}_elements")
        edit.interpose(value, elements)
        shape = edit.make_node("Shape", [value], name=f"{name}_shape")
        edit.insert_before(elements, [shape])
        restored = edit.make_node(
            "Reshape", [elements.outputs[0], shape.outputs[0]], {"allowzero": 1}, name=f"{name}_restored"
        )
        edit.interpose(elements.outputs[0], restored)
        for output in (elements.outputs[0], restored.outputs[0]):
            output.type = value.type
        found[value] = found[restored.outputs[0]] = elements.outputs[0], shape.outputs[0]
    return found


def _is_unranked(value: ir.Value, cx: Context) -> bool:
    type_ = cx.facts.type(value) or value.type
    return isinstance(type_, ir.TensorType) and bool(value.uses()) and cx.shape(value) is None
