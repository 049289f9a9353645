"""The graphs and operators of a model, collected in one traversal."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from graphopt.ir._onnx_ir_without_sympy import onnx_ir
from graphopt.ir.nested_graphs import with_bodies


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
        main = tuple(with_bodies(model.graph))
        functions = [body for function in model.functions.values() for body in with_bodies(function.graph)]
        counts, inside = _operators(main), _operators(functions)
        return cls(
            (*main, *functions),
            frozenset(op_type for _, op_type in (*counts, *inside)),
            counts.total() + inside.total(),
            counts.total() - counts["", "Constant"],
        )


def _operators(graphs: list[onnx_ir.Graph] | tuple[onnx_ir.Graph, ...]) -> Counter[tuple[str, str]]:
    """The number of nodes by domain and operator."""
    return Counter((node.domain, node.op_type) for graph in graphs for node in graph)
