"""State that a run updates: the running statistics of BatchNormalization in training."""

from __future__ import annotations

from graphopt import ir
from graphopt.context import Context

#: Names of outputs that are new contents of state begin so.
PREFIX = "state."


def return_state(cx: Context) -> dict[str, str]:
    """Let the model return the statistics that its training updates.

    Returned ones are also safe: onnxruntime writes those that are not over what was fed.

    Returns:
        By the name of the input or initializer that holds a statistic, the name of the output that returns
        its new contents. What several nodes update is left out.
    """
    graph = cx.model.graph
    found: dict[str, str] = {}
    for node in list(graph):
        if is_training(node):
            for index, held in enumerate(node.inputs[3:5], start=1):
                if held is not None and held.producer() is None and len(list(held.uses())) == 1:
                    found[held.name or ""] = _returned(cx, node, index, held)
    return found


def is_training(node: ir.Node) -> bool:
    """Whether ``node`` is a BatchNormalization that updates statistics."""
    mode = node.attributes.get("training_mode")
    return node.op_type == "BatchNormalization" and not node.domain and mode is not None and mode.value == 1


def statistics(graph: ir.Graph) -> list[str]:
    """The initializers that hold statistics which runs update."""
    held = [value for node in graph if is_training(node) for value in node.inputs[3:5]]
    return [value.name or "" for value in held if value is not None and value.is_initializer()]


def _returned(cx: Context, node: ir.Node, index: int, held: ir.Value) -> str:
    """The name of the output of the model that is output ``index`` of ``node``."""
    if index >= len(node.outputs) or not node.outputs[index].name:
        cx.edit.give_output(node, index)
    output = node.outputs[index]
    if not output.is_graph_output():
        cx.edit.rename(output, PREFIX + (held.name or ""))
        cx.edit.add_output(cx.model.graph, output)
        dtype, shape = cx.dtype(held) or held.dtype, ir.all_ints(cx.shape(held))
        if dtype is not None:
            cx.edit.declare(output, dtype, [None] if shape is None else shape)
    return output.name or ""
