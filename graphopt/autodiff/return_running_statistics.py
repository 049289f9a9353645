"""Running statistics that a run of the model updates, by BatchNormalization in training mode."""

from __future__ import annotations

from graphopt import ir
from graphopt.context import Context

#: Prefix of the names of outputs that return the next running statistics.
PREFIX = "state."


def return_state(cx: Context) -> dict[str, str]:
    """Make the model return the running statistics that it updates.

    Without these outputs, onnxruntime overwrites the fed tensors.

    Returns:
        The name of the output with the next value of each statistic, by the name of its input or initializer.
        Statistics that several nodes update are omitted.
    """
    graph = cx.model.graph
    found: dict[str, str] = {}
    for node in list(graph):
        if is_training(node):
            for index, statistic in enumerate(node.inputs[3:5], start=1):
                if (
                    statistic is not None
                    and statistic.producer() is None
                    and len(list(statistic.uses())) == 1
                ):
                    found[statistic.name or ""] = _return(cx, node, index, statistic)
    return found


def is_training(node: ir.Node) -> bool:
    """Whether ``node`` is a BatchNormalization that updates running statistics."""
    mode = node.attributes.get("training_mode")
    return node.op_type == "BatchNormalization" and not node.domain and mode is not None and mode.value == 1


def statistics(graph: ir.Graph) -> list[str]:
    """The initializers with running statistics that the graph updates."""
    values = [value for node in graph if is_training(node) for value in node.inputs[3:5]]
    return [value.name or "" for value in values if value is not None and value.is_initializer()]


def _return(cx: Context, node: ir.Node, index: int, statistic: ir.Value) -> str:
    """Return output ``index`` of ``node`` from the model, declared like ``statistic``; returns its name."""
    if index >= len(node.outputs) or not node.outputs[index].name:
        cx.edit.add_node_output(node, index)
    output = node.outputs[index]
    if not output.is_graph_output():
        cx.edit.rename(output, PREFIX + (statistic.name or ""))
        cx.edit.add_output(cx.model.graph, output)
        dtype, shape = cx.dtype(statistic) or statistic.dtype, ir.all_ints(cx.shape(statistic))
        if dtype is not None:
            cx.edit.declare(output, dtype, [None] if shape is None else shape)
    return output.name or ""
