"""constant-pooling: equal constants become one."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

from graphopt import ir
from graphopt.context import Context
from graphopt.passes.base import Pass


@dataclass(frozen=True)
class ConstantPooling(Pass):
    """Let constants of one graph with equal contents share one initializer or Constant node.

    Graphs are pooled one by one: onnxruntime treats a weight of an outer graph as a variable
    inside a body, and would no longer prepack it. Only tensors of equal size are hashed.
    """

    name: ClassVar[str] = "constant-pooling"

    def run(self, model: ir.Model, cx: Context) -> None:
        """Merge equal constants, graph by graph."""
        for graph in list(ir.graphs_of(model)):
            groups: dict[Hashable, list[ir.Value]] = {}
            for value in _constants(graph):
                tensor = ir.constant_of(value)
                if tensor is not None:
                    groups.setdefault((tensor.dtype, tuple(tensor.shape.numpy())), []).append(value)
            for values in groups.values():
                if len(values) > 1:
                    self._merge(values, cx)

    def _merge(self, values: list[ir.Value], cx: Context) -> None:
        first: dict[Hashable, ir.Value] = {}
        for value in values:
            tensor = ir.constant_of(value)
            assert tensor is not None
            kept = first.setdefault(ir.hash_of(tensor), value)
            if kept is value or value.is_graph_output():
                continue
            for user, _ in list(value.uses())[:1]:
                action = cx.permit(self.name, user)
                if action is not None:
                    cx.edit.replace(value, kept)
                    cx.wrote(action, user, [])
            if not value.uses():
                node = value.producer()
                if node is not None:
                    cx.edit.remove(node)
                else:
                    cx.edit.remove_initializer(value)


def _constants(graph: ir.Graph) -> list[ir.Value]:
    """Initializers and outputs of Constant nodes of ``graph``, in order."""
    nodes = [node.outputs[0] for node in graph if node.op_type == "Constant" and node.domain == ""]
    return [*graph.initializers.values(), *nodes]
