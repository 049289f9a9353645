"""The graphs and operators of a model, collected in one traversal."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from graphopt.ir._onnx_ir_without_sympy import onnx_ir
from graphopt.ir.nested_graphs import bodies_of


class Inventory(NamedTuple):
    """The graphs and operators of a model at one time.

    Attributes:
        graphs: all graphs, in the order of :func:`graphopt.ir.nested_graphs.graphs_of`.
        operators: the names of all operators.
        nodes: the number of all nodes.
        reported: the number of nodes that reports count: without functions and Constant nodes.
    """

    graphs: tuple[onnx_ir.Graph, ...]
    operators: frozenset[str]
    nodes: int
    reported: int

    @classmethod
    def of(cls, model: onnx_ir.Model) -> Inventory:
        """Traverse ``model``."""
        graphs: list[onnx_ir.Graph] = []
        main, functions = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
        _traverse(model.graph, graphs, main)
        for function in model.functions.values():
            _traverse(function.graph, graphs, functions)
        return cls(
            tuple(graphs),
            frozenset(op_type for _, op_type in (*main, *functions)),
            main.total() + functions.total(),
            main.total() - main["", "Constant"],
        )


def _traverse(root: onnx_ir.Graph, graphs: list[onnx_ir.Graph], counts: Counter[tuple[str, str]]) -> None:
    """Add ``root`` and its bodies to ``graphs``, and their nodes to ``counts`` by domain and operator."""
    stack = [root]
    while stack:
        graph = stack.pop()
        graphs.append(graph)
        nodes = list(graph)  # iteration over the linked list costs more than over a copy
        counts.update([(node.domain, node.op_type) for node in nodes])
        stack.extend(reversed(bodies_of(nodes)))
