"""remove-profile-nodes: nothing is noted or asserted of values any more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from graphopt import ir
from graphopt.context import Context
from graphopt.ops import dialects
from graphopt.passes.base import Pass
from graphopt.transforms.profile.clear_profile import ClearProfile


@dataclass(frozen=True)
class RemoveProfileNodes(Pass):
    """Remove guards, and notes of what profiled runs have shown, from a model that is to be general.

    What reads a guard then reads what that read. That is right as long as nothing has relied on guards yet:
    what was folded by them stays folded.

    The seed is ``ProfilingRecord::removeProfilingNodes`` of PyTorch's JIT.
    """

    name: ClassVar[str] = "remove-profile-nodes"
    does: ClassVar[str] = "removed"

    def run(self, model: ir.Model, cx: Context) -> None:
        """Remove them from all graphs; facts that guards told are forgotten."""
        removed = 0
        ClearProfile().run(model, cx)
        for graph in ir.graphs_of(model):
            for node in list(graph):
                if dialects.is_guard(node) and node.inputs and node.inputs[0] is not None:
                    removed += self._remove(node, node.inputs[0], cx)
        if removed:
            cx.look_afresh("guard")

    def _remove(self, node: ir.Node, value: ir.Value, cx: Context) -> bool:
        action = cx.begin_rewrite(self.name, node)
        if action is None:
            return False
        output, made = node.outputs[0], []
        if output.is_graph_output():  # whether what it declares is right was judged by the guard
            identity = cx.edit.make_node("Identity", [value], name=f"{ir.label(node)}_identity")
            cx.edit.insert_before(node, [identity])
            cx.edit.note_origin([identity], [node], self.name)
            value, made = identity.outputs[0], [identity]
        cx.edit.replace(output, value)
        cx.edit.remove(node)
        cx.end_rewrite(action, node, made)
        return True
