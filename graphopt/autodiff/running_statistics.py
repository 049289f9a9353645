"""Running statistics that a run of the model updates, by BatchNormalization in training mode."""

from __future__ import annotations

from graphopt import ir
from graphopt.context import Context

#: Prefix of the names of outputs that return the next running statistics.
PREFIX = "state."


def return_state(cx: Context) -> dict[str, str]:
    """Make the model return the running statistics that it updates.

    Otherwise onnxruntime overwrites the tensors that were fed.

    Returns:
        The name of the output with the next value of each statistic, by the name of its input or initializer.
        Statistics that several nodes update are omitted.
    """
    graph = cx.model.graph
    found: dict[str, str] = {}
    for node in list(graph):
        if is_training(node):
            for index, held in enumerate(node.inputs[3:5], start=1):
                if held is not None and held.producer() is None and len(list(held.uses())) == 1:
                    found[held.name or ""] = _return(cx, node, index, held)
    return found


def is_training(node: ir.Node) -> bool:
    """Whether ``node`` is a BatchNormalization that updates running statistics."""
    mode = node.attributes.get("training_mode")
    return node.op_type == "BatchNormalization" and not node.domain and mode is not None and mode.value == 1


def statistics(graph: ir.Graph) -> list[str]:
    """The initializers with running statistics that the graph updates."""
    held = [value for node in graph if is_training(node) for value in node.inputs[3:5]]
    return [value.name or "" for value in held if value is not None and value.is_initializer()]


def _return(cx: Context, node: ir.Node, index: int, held: ir.Value) -> str:
    """Return output ``index`` of ``node`` from the model, declared like ``held``; the name of the output."""
    if index >= len(node.outputs) or not node.outputs[index].name:
        cx.edit.add_node_output(node, index)
    output = node.outputs[index]
    if not output.is_graph_output():
        cx.edit.rename(output, PREFIX + (held.name or ""))
        cx.edit.add_output(cx.model.graph, output)
        dtype, shape = cx.dtype(held) or held.dtype, ir.all_ints(cx.shape(held))
        if dtype is not None:
            cx.edit.declare(output, dtype, [None] if shape is None else shape)
    return output.name or ""
