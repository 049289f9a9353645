"""Weights in Constant nodes, where some exporters write them, made initializers."""

from __future__ import annotations

from collections.abc import Container

from graphopt import ir
from graphopt.parameters.selection import is_parameter, returns_gradients


def expose(model: ir.Model, names: Container[str], *, weights: bool = False) -> None:
    """Let Constant nodes of the main graph and its bodies be initializers of the main graph.

    Initializers are named after the nodes' outputs; a name that several branches use becomes unique.

    Args:
        names: outputs of the nodes that become initializers.
        weights: so do all that look like parameters; in a joint graph, which has constants of its own, none.
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
