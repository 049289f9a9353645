"""fold-if: an If whose condition is known becomes the branch that it takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from graphopt import ir
from graphopt.context import Context
from graphopt.passes.base import Pass


@dataclass(frozen=True)
class FoldIf(Pass):
    """Replace each If whose condition is known by the nodes of the branch that it takes."""

    name: ClassVar[str] = "fold-if"

    def run(self, model: ir.Model, cx: Context) -> None:
        """Fold outer Ifs first: those in a branch that is never taken vanish with it."""
        for graph in list(ir.graphs_of(model)):
            for node in list(graph):
                if node.op_type == "If" and node.domain == "":
                    self._fold(node, cx)

    def _fold(self, node: ir.Node, cx: Context) -> None:
        condition = cx.static_ints(node.inputs[0])
        if condition is None or len(condition) != 1:
            return
        taken = node.attributes.get("then_branch" if condition[0] else "else_branch")
        if taken is None or taken.is_ref():
            return
        branch = taken.as_graph()
        if branch.inputs or len(branch.outputs) != len(node.outputs):
            return
        action = cx.permit(self.name, node)
        if action is None:
            return
        moved = list(branch)
        for old, new in zip(node.outputs, cx.edit.hoist(branch, node), strict=True):
            cx.edit.replace(old, new)
        other = node.attributes.get("else_branch" if condition[0] else "then_branch")
        if other is not None and not other.is_ref():
            cx.edit.clear_body(other.as_graph())
        cx.edit.remove(node)
        cx.wrote(action, node, moved)
