"""inline-autodiff-subgraphs: inline groups that are too small."""

from __future__ import annotations

from typing import ClassVar

from graphopt import ir
from graphopt.context import Context, Refusal
from graphopt.ops import graphopt_operators
from graphopt.partitioning.redundant_nodes import executed
from graphopt.passes.base import Pass
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class InlineAutodiffSubgraphs(Pass):
    """Inline groups that are smaller than a minimum, and remove functions without calls.

    The size of a group is its number of distinct computations, without Identity and Constant.

    Modelled on ``InlineAutodiffSubgraphs`` of PyTorch's JIT.

    Attributes:
        minimum: minimum size of groups that are kept.
    """

    minimum: int = 2

    name: ClassVar[str] = "inline-autodiff-subgraphs"

    def run(self, model: ir.Model, cx: Context) -> None:
        """Inline small groups in all graphs."""
        small = {
            key: function
            for key, function in model.functions.items()
            if key[0] == graphopt_operators.AUTODIFF_GROUPS
            and executed(function.graph, self.minimum) < self.minimum
        }
        if not small:
            return
        for graph in cx.graphs:
            for call in [node for node in graph if node.op_identifier() in small]:
                self._inline(call, cx)
        called = {node.op_identifier() for graph in ir.graphs_of(model) for node in graph}
        for key, function in small.items():
            if key not in called:
                cx.edit.remove_function(function)

    def _inline(self, call: ir.Node, cx: Context) -> None:
        reason = ir.inline_obstacle(cx.edit, call)
        if reason is not None:
            cx.refuse(Refusal(self.name, ir.label(call), reason))
            return
        action = cx.begin_rewrite(self.name, call)
        if action is not None:
            cx.end_rewrite(action, call, ir.inline_call(cx.edit, call))
