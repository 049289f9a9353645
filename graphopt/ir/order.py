"""Topological order of graphs."""

from __future__ import annotations

from graphopt.errors import InvalidModel
from graphopt.ir.onnxir import onnx_ir
from graphopt.ir.scopes import bodies, with_bodies


def sort_model(model: onnx_ir.Model) -> None:
    """Sort every graph that is not in topological order; a sorted one is left as it is.

    Exporters write unsorted graphs, and onnxruntime loads them.

    Raises:
        InvalidModel: a graph has a cycle.
    """
    for graph in (model.graph, *(function.graph for function in model.functions.values())):
        if not is_sorted(graph):
            try:
                graph.sort()
            except ValueError as error:
                raise InvalidModel(f"graph {graph.name or '(unnamed)'!r} has a cycle") from error


def is_sorted(graph: onnx_ir.Graph) -> bool:
    """Whether in ``graph`` and its bodies each value is produced before it is read.

    A body reads outer values at the place of the node that holds it.
    """
    position: dict[onnx_ir.Node, int] = {}
    holder: dict[onnx_ir.Graph | None, onnx_ir.Node] = {}
    for nested in with_bodies(graph):
        for index, node in enumerate(nested):
            position[node] = index
            if node.attributes:
                holder.update((body, node) for body in bodies(node))
    for node in position:
        for value in node.inputs:
            producer = value.producer() if value is not None else None
            if producer is None:
                continue
            reader: onnx_ir.Node | None = node
            while reader is not None and reader.graph is not producer.graph:
                reader = holder.get(reader.graph)
            if reader is None or position.get(producer, -1) >= position[reader]:
                return False
    return True
