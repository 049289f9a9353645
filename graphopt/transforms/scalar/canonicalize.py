"""canonicalize: one form for equivalent nodes."""

from __future__ import annotations

from typing import ClassVar

from graphopt import ir
from graphopt.context import Context
from graphopt.ops import traits
from graphopt.passes.base import Pass
from graphopt.util.lazy_dataclass import dataclass

#: Prefix of the domains of the standard, whose operators have several versions.
_STANDARD = "ai.onnx"


@dataclass(frozen=True)
class Canonicalize(Pass):
    """Normalize nodes: constants on the right, no trailing empty inputs, all domains imported."""

    name: ClassVar[str] = "canonicalize"
    proven_exact: ClassVar[bool] = True
    revisits_changes: ClassVar[bool] = True

    def run(self, model: ir.Model, cx: Context) -> None:
        """Normalize every node."""
        for graph in cx.graphs:
            for node in cx.nodes_to_visit(graph):
                if traits.is_standard(node.domain, node.op_type):
                    self._trim(node, cx)
                    self._constant_right(node, cx)
                elif not node.domain.startswith(_STANDARD):
                    # onnxruntime also runs its own operators, which have one version, without an import
                    cx.edit.import_domain(node)

    def _trim(self, node: ir.Node, cx: Context) -> None:
        size = len(node.inputs)
        if not size or node.inputs[-1] is not None:
            return
        schema = ir.operator_schema(node.domain, node.op_type, cx.version(node))
        least = 0 if schema is None else schema.min_input  # a Loop without a condition keeps the empty input
        while size > least and node.inputs[size - 1] is None:
            size -= 1
        if size < len(node.inputs) and (action := cx.begin_rewrite(self.name, node)):
            cx.edit.trim_inputs(node, size)
            cx.end_rewrite(action, node, [])

    def _constant_right(self, node: ir.Node, cx: Context) -> None:
        if len(node.inputs) != 2 or not traits.commutes_exactly(node.domain, node.op_type):
            return
        left, right = node.inputs
        if ir.constant_of(left) is None or ir.constant_of(right) is not None:
            return
        if action := cx.begin_rewrite(self.name, node):
            cx.edit.set_input(node, 0, right)
            cx.edit.set_input(node, 1, left)
            cx.end_rewrite(action, node, [])
