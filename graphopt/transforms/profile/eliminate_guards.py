"""eliminate-guards: remove guards whose assertions are implied."""

from __future__ import annotations

from typing import ClassVar

from graphopt import ir
from graphopt.context import Context
from graphopt.ops import graphopt_operators
from graphopt.passes.base import Pass
from graphopt.profile.annotations import assertion_of
from graphopt.transforms.profile._compare_assertions import is_implied
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class EliminateGuards(Pass):
    """Remove each guard whose assertion follows from the facts about its input.

    Earlier guards contribute facts: the sum of guarded values needs no guard. If two guards read one value,
    the second is changed to read the output of the first.

    Modelled on ``EliminateRedundantGuards`` of PyTorch's JIT, which covers element-wise and some other
    operators; here all shape facts count.
    """

    name: ClassVar[str] = "eliminate-guards"
    does: ClassVar[str] = "removed"

    def run(self, model: ir.Model, cx: Context) -> None:
        """Visit each graph in execution order."""
        for graph in ir.graphs_of(model):
            guarded: dict[ir.Value, ir.Value] = {}
            for node in list(graph):
                value = node.inputs[0] if graphopt_operators.is_guard(node) and node.inputs else None
                if value is None:
                    continue
                left = self._visit(node, guarded.get(value, value), cx)
                if left is not None:
                    guarded[value] = left.outputs[0]

    def _visit(self, node: ir.Node, value: ir.Value, cx: Context) -> ir.Node | None:
        """Remove the guard ``node`` if its assertion holds for ``value``; otherwise let it read ``value``."""
        profile, output = assertion_of(node), node.outputs[0]
        if profile is not None and is_implied(profile, value, cx, output):
            if action := cx.begin_rewrite(self.name, node):
                cx.edit.replace(output, value)
                cx.edit.remove(node)
                cx.end_rewrite(action, node, [])
                return None
        elif value is not node.inputs[0] and (action := cx.begin_rewrite(self.name, node)):
            made = cx.edit.make_node(
                node.op_type, [value], node.attributes.values(), domain=node.domain, name=ir.label(node)
            )
            cx.edit.insert_before(node, [made])
            cx.edit.note_origin([made], [node], self.name)
            cx.edit.replace(output, made.outputs[0])
            cx.edit.remove(node)
            cx.end_rewrite(action, node, [made])
            return made
        return node
