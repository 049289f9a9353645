"""remove-profile-nodes: remove profiling nodes, guards and profile annotations."""

from __future__ import annotations

from typing import ClassVar

from graphopt import ir
from graphopt.context import Context
from graphopt.control_flow.if_branches import branches_of, inline_branch
from graphopt.ops import graphopt_operators
from graphopt.passes.base import Pass
from graphopt.transforms.profile._profiling_nodes import remove_profiling_nodes
from graphopt.transforms.profile.clear_profile import ClearProfile
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class RemoveProfileNodes(Pass):
    """Remove all profiling nodes, guards and profile annotations, to make the model general again.

    ``Profile(x) → x``, ``Guard(x) → x``, ``If(TypeCheck(x)) {g(x)} else {f(x)} → f(x)``. This is correct only
    if no rewrite has relied on a ``Guard``: constants that were folded from facts of guards are not restored.

    Modelled on ``ProfilingRecord::removeProfilingNodes`` of PyTorch's JIT.
    """

    name: ClassVar[str] = "remove-profile-nodes"
    does: ClassVar[str] = "removed"

    def run(self, model: ir.Model, cx: Context) -> None:
        """Remove these nodes and annotations from all graphs, and discard the facts that guards provided."""
        removed = 0
        ClearProfile().run(model, cx)
        remove_profiling_nodes(
            model,
            cx,
            self.name,
            graphopt_operators.PROFILE,
            graphopt_operators.PROFILE_ZERO,
            graphopt_operators.COUNTER,
        )
        for check in graphopt_operators.type_checks_of(model):
            if check.graph is not None:  # not removed together with a specialized version
                self._remove_check(check, cx)
        for graph in ir.graphs_of(model):
            for node in list(graph):
                if graphopt_operators.is_guard(node) and node.inputs and node.inputs[0] is not None:
                    removed += self._remove(node, node.inputs[0], cx)
        if removed:
            cx.invalidate("guard")

    def _remove(self, node: ir.Node, value: ir.Value, cx: Context) -> bool:
        action = cx.begin_rewrite(self.name, node)
        if action is None:
            return False
        output, made = node.outputs[0], []
        if output.is_graph_output():  # the declared type was checked by the guard
            identity = cx.edit.make_node("Identity", [value], name=f"{ir.label(node)}_identity")
            cx.edit.insert_before(node, [identity])
            cx.edit.note_origin([identity], [node], self.name)
            value, made = identity.outputs[0], [identity]
        cx.edit.replace(output, value)
        cx.edit.remove(node)
        cx.end_rewrite(action, node, made)
        return True

    def _remove_check(self, check: ir.Node, cx: Context) -> None:
        """Remove ``check``, and replace the Ifs with this condition by their general versions."""
        action = cx.begin_rewrite(self.name, check)
        if action is None:
            return
        made: list[ir.Node] = []
        for choice in list(ir.readers(check.outputs[0])):
            branches = branches_of(choice)
            if branches is not None and choice.graph is not None:
                made += inline_branch(cx, choice, branches[1])
        if not ir.is_read(check.outputs[0]):
            cx.edit.remove(check)
        cx.end_rewrite(action, check, made)
