"""Move weights from Constant nodes, where some exporters write them, to initializers."""

from __future__ import annotations

from collections.abc import Container

from graphopt import ir
from graphopt.parameters.selection import is_parameter, returns_gradients


def constants_to_initializers(model: ir.Model, names: Container[str], *, weights: bool = False) -> None:
    """Replace Constant nodes of the main graph and its bodies by initializers of the main graph.

    Initializers have the names of the nodes' outputs, made unique if several branches use a name.

    Args:
        names: outputs of the nodes to replace.
        weights: also replace all Constant nodes that look like parameters, except in a joint graph, which has
            its own constants.
    """
    weights = weights and not returns_gradients(model)
    found: dict[ir.Node, ir.TensorProtocol] = {}
    for node in ir.walk_nodes(model.graph):
        if node.op_type == "Constant" and not node.domain:
            value, tensor = node.outputs[0], ir.constant_of(node.outputs[0])
            if tensor is not None and (value.name in names or (weights and is_parameter(value))):
                found[node] = tensor
    if found:
        ir.Editor(model).expose(found)
