"""fold-if: branch folding."""

from __future__ import annotations

from typing import ClassVar

from graphopt import ir
from graphopt.context import Context
from graphopt.control_flow.if_branches import branches_of, inline_branch
from graphopt.passes.base import Pass
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class FoldIf(Pass):
    """Replace each If with a known condition by the branch that runs (branch folding).

    An If on a negated condition swaps its branches instead.
    """

    name: ClassVar[str] = "fold-if"
    operators: ClassVar[frozenset[str]] = frozenset({"If"})
    tags: ClassVar[tuple[str, ...]] = ("onnxoptimizer:eliminate_if_with_const_cond", "onnxscript:fold-if")

    def run(self, model: ir.Model, cx: Context) -> None:
        """Fold outer Ifs first, which also removes the Ifs in unreachable branches."""
        for graph in cx.graphs:
            for node in list(graph):
                if node.op_type == "If" and node.domain == "" and not self._fold(node, cx):
                    self._swap_negated(node, cx)

    def _fold(self, node: ir.Node, cx: Context) -> bool:
        condition = cx.static_ints(node.inputs[0])
        branches = branches_of(node)
        if condition is None or len(condition) != 1 or branches is None:
            return False
        taken = branches[0] if condition[0] else branches[1]
        if node.graph is None or not cx.edit.supports_constants_of(node.graph, taken):
            return False
        action = cx.begin_rewrite(self.name, node)
        if action is None:
            return False
        cx.end_rewrite(action, node, inline_branch(cx, node, taken))
        return True

    def _swap_negated(self, node: ir.Node, cx: Context) -> None:
        condition = node.inputs[0]
        negation = condition.producer() if condition is not None else None
        branches = branches_of(node)
        if negation is None or negation.op_type != "Not" or negation.domain != "" or branches is None:
            return
        if action := cx.begin_rewrite(self.name, node):
            cx.edit.set_input(node, 0, negation.inputs[0])
            cx.edit.set_attribute(node, "then_branch", branches[1])
            cx.edit.set_attribute(node, "else_branch", branches[0])
            cx.end_rewrite(action, node, [node])
