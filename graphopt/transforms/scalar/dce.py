"""dce: dead code elimination."""

from __future__ import annotations

from collections.abc import Container
from typing import ClassVar

from graphopt import ir
from graphopt.context import Context
from graphopt.passes.base import Pass
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class DeadCodeElimination(Pass):
    """Dead code elimination: remove unused nodes, initializers, functions and domain imports.

    Inputs and overridable initializers are part of the interface and are kept. A node is kept while one of
    its outputs is read; its unused trailing outputs are also kept, because their presence may determine the
    operator's computation. Guards are always kept.
    """

    name: ClassVar[str] = "dce"
    proven_exact: ClassVar[bool] = True
    tags: ClassVar[tuple[str, ...]] = (
        "onnxslim:dead-nodes",
        "onnxoptimizer:eliminate_deadend",
        "onnxoptimizer:eliminate_unused_initializer",
    )
    does: ClassVar[str] = "removed"

    def run(self, model: ir.Model, cx: Context) -> None:
        """Remove dead nodes bottom up, bodies before their nodes, then initializers and functions."""
        for graph in reversed(cx.graphs):
            self._remove_nodes(graph, cx)
        for graph in cx.graphs:
            for value in list(graph.initializers.values()):
                if not ir.is_read(value) and not ir.is_overridable(value):
                    cx.edit.remove_initializer(value)
        if not ir.has_training_info(model):  # training graphs may call any function, and use any domain
            self._remove_functions(model, cx)
            self._remove_imports(model, cx)

    def _remove_nodes(self, graph: ir.Graph, cx: Context) -> None:
        # Readers follow producers, so one backward walk finds whole dead trees; the readers
        # inside a dead node's bodies are detached first, since they would keep outer values alive.
        for node in list(reversed(graph)):
            if any(map(ir.is_read, node.outputs)) or cx.has_to_run(node):
                continue
            action = cx.begin_rewrite(self.name, node)
            if action is None:
                continue
            cx.edit.remove_with_bodies(node)
            cx.end_rewrite(action, node, [])

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

    @staticmethod
    def _remove_imports(model: ir.Model, cx: Context) -> None:
        """Remove imports of domains without nodes, except the standard domain.

        The model also imports the domains of its functions, and the domains that these functions import.
        """
        needed = dict.fromkeys(_STANDARD)
        for function in model.functions.values():
            _remove_unused(function.opset_imports, function.graph, _STANDARD, cx)
            needed |= dict.fromkeys((function.domain, *function.opset_imports))
        _remove_unused(model.graph.opset_imports, model.graph, needed, cx)


_STANDARD = ("", "ai.onnx")


def _remove_unused(imports: dict[str, int], root: ir.Graph, kept: Container[str], cx: Context) -> None:
    """Remove all ``imports`` without nodes in ``root`` or its bodies, except the ones in ``kept``."""
    if all(domain in kept for domain in imports):
        return
    used = {node.domain for node in ir.walk_nodes(root)}
    for domain in [domain for domain in imports if domain not in kept and domain not in used]:
        cx.edit.remove_import(imports, domain)
