"""dissolve-groups: native groups become nodes again, so that other passes see what they compute."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from graphopt import ir
from graphopt.context import Context
from graphopt.fusion.functions import note_signatures, signatures_of
from graphopt.numerics import Numerics
from graphopt.ops import native
from graphopt.passes.base import Pass

#: Before it, initializers are inputs.
_INITIALIZERS_SINCE = 4


@dataclass(frozen=True)
class DissolveGroups(Pass):
    """Put the nodes of native groups back where they are called, if ``fuse-groups`` may make new ones.

    Rules know patterns of operators, not of groups. Names become those from before the nodes were
    grouped, so that optimizing a result again gives the same result.
    """

    name: ClassVar[str] = "dissolve-groups"
    for_speed: ClassVar[bool] = True

    def run(self, model: ir.Model, cx: Context) -> None:
        """Inline all groups."""
        if why_no_groups(model, cx) is None:
            dissolve(model, cx)


def why_no_groups(model: ir.Model, cx: Context) -> str | None:
    """Why there are no groups in ``model`` at all."""
    device = cx.options.device
    if device.kind != "cpu":
        return f"kernels run on the CPU, and the result is for {device}"
    if cx.options.numerics is Numerics.EXACT:
        return "kernels do not keep every bit, as --exact demands"
    if model.ir_version < _INITIALIZERS_SINCE:
        return "in IR version 3 weights are inputs; a newer one is needed (--target-opset raises it)"
    return None


def dissolve(model: ir.Model, cx: Context) -> None:
    """Put the nodes of all groups back where they are called."""
    groups = [key for key in model.functions if key[0] == native.DOMAIN]
    if not groups:
        return
    for key in groups:
        cx.edit.free_names(model.functions[key].graph)
    for graph in list(ir.graphs_of(model)):
        calls = [node for node in graph if node.op_identifier() in groups]
        held = {value.name: value for value in ir.constants_in(graph) if value.name} if calls else {}
        for call in calls:
            if ir.inline_obstacle(cx.edit, call) is None:
                _lift_constants(ir.inline_call(cx.edit, call, prefixed=False), graph, held, cx)
    called = {node.op_identifier() for graph in ir.graphs_of(model) for node in graph}
    for key in groups:
        if key not in called:
            cx.edit.remove_function(model.functions[key])
    note_signatures(model, signatures_of(model), cx)
    cx.look_afresh("inline")


def _lift_constants(nodes: list[ir.Node], graph: ir.Graph, held: dict[str, ir.Value], cx: Context) -> None:
    """Make constants of ``graph`` of the Constant nodes that a function has instead, by their old names.

    Args:
        held: the constants of ``graph`` by name, which gets the new ones.
    """
    for node in nodes:
        tensor = ir.constant_of(node.outputs[0]) if node.op_type == "Constant" else None
        if tensor is None or node.name is None:
            continue
        value = held.get(node.name)
        known = ir.constant_of(value)
        if value is None or known is None or ir.hash_of(known) != ir.hash_of(tensor):
            value = held[node.name] = cx.edit.constant(graph, tensor, node.name)
        cx.edit.replace(node.outputs[0], value)
        cx.edit.remove(node)
