"""dce: remove what nothing reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from graphopt import ir
from graphopt.context import Context
from graphopt.passes.base import Pass


@dataclass(frozen=True)
class DeadCodeElimination(Pass):
    """Remove nodes, initializers and functions that nothing reads or calls.

    Inputs and overridable initializers are part of the interface and stay. A node stays as long
    as one of its outputs is read; trailing outputs that nothing reads are left in place, since
    which of them exist can decide what the operator computes.
    """

    name: ClassVar[str] = "dce"
    does: ClassVar[str] = "removed"

    def run(self, model: ir.Model, cx: Context) -> None:
        """Remove dead nodes (bottom up, bodies before what holds them), then initializers and functions."""
        for graph in reversed(list(ir.graphs_of(model))):
            self._remove_nodes(graph, cx)
        for graph in list(ir.graphs_of(model)):
            for value in list(graph.initializers.values()):
                if not ir.is_read(value) and not ir.is_overridable(value):
                    cx.edit.remove_initializer(value)
        self._remove_functions(model, cx)

    def _remove_nodes(self, graph: ir.Graph, cx: Context) -> None:
        # Readers come after producers, so one backward walk finds whole dead trees; the readers
        # inside a dead node's bodies are detached first, since they would keep outer values alive.
        for node in list(reversed(graph)):
            if any(map(ir.is_read, node.outputs)):
                continue
            action = cx.permit(self.name, node)
            if action is None:
                continue
            for body in ir.bodies(node):
                cx.edit.clear_body(body)
            cx.edit.remove(node)
            cx.wrote(action, node, [])

    @staticmethod
    def _remove_functions(model: ir.Model, cx: Context) -> None:
        """Remove functions that neither the graph nor a live function calls."""
        live: dict[object, None] = {}
        pending = [model.graph]
        while pending:
            for node in ir.walk_nodes(pending.pop()):
                key = node.op_identifier()
                if key in model.functions and key not in live:
                    live[key] = None
                    pending.append(model.functions[key].graph)
        for key, function in list(model.functions.items()):
            if key not in live:
                cx.edit.remove_function(function)
