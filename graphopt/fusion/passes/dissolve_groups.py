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
        for call in [node for node in graph if node.op_identifier() in groups]:
            if ir.inline_obstacle(cx.edit, call) is None:
                ir.inline_call(cx.edit, call, prefixed=False)
    called = {node.op_identifier() for graph in ir.graphs_of(model) for node in graph}
    for key in groups:
        if key not in called:
            cx.edit.remove_function(model.functions[key])
    note_signatures(model, signatures_of(model), cx)
    cx.look_afresh("inline")
