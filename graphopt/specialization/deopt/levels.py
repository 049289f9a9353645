"""The graphs around an exit point, each split into the nodes before and after it."""

from __future__ import annotations

from dataclasses import dataclass

from graphopt import ir
from graphopt.context import Context
from graphopt.control_flow.loops import LoopForm, loop_form
from graphopt.errors import UnsupportedModel
from graphopt.specialization.deopt.exit_points import Place


@dataclass(frozen=True)
class Level:
    """A graph around a place, cut in two.

    Attributes:
        graph: the main graph, or a body.
        holder: the If or Loop that holds it; ``None`` for the main graph.
        before: its nodes before the place, or before the node that holds the next inner level.
        after: its nodes behind.
        form: the holder, if it is a Loop.
    """

    graph: ir.Graph
    holder: ir.Node | None
    before: tuple[ir.Node, ...]
    after: tuple[ir.Node, ...]
    form: LoopForm | None = None


def levels_of(place: Place, cx: Context) -> list[Level]:
    """The graphs around ``place``, the main graph first and its own last.

    Raises:
        UnsupportedModel: a run can't leave the model there.
    """
    if ir.constant_of(place.value) is not None:
        raise _refused(place, "that is a constant")
    scopes, levels = cx.edit.scopes, []
    function = scopes.function(place.graph)
    if function is not None:
        raise _refused(place, f"it lies in the function {function.domain}::{function.name}, which ends whole")
    graph, nodes = place.graph, list(place.graph)
    first = second = 0 if place.after is None else nodes.index(place.after) + 1
    while True:
        holder = scopes.holder(graph)
        form = None if holder is None else _form(place, holder, graph, cx)
        levels.append(Level(graph, holder, tuple(nodes[:first]), tuple(nodes[second:]), form))
        if holder is None:
            break
        assert holder.graph is not None
        graph, nodes = holder.graph, list(holder.graph)
        first = nodes.index(holder)
        second = first + 1
    version = ir.standard_version(cx.edit.model.opset_imports)
    if len(levels) > 1 and version < 11:
        raise _refused(place, f"it lies in a body, and opset {version} lacks operators to leave that")
    return levels[::-1]


def _form(place: Place, holder: ir.Node, graph: ir.Graph, cx: Context) -> LoopForm | None:
    """``holder`` as a loop, if it is one that can be left; ``None`` for an If."""
    name = ir.label(holder)
    if holder.domain == "" and holder.op_type == "If":
        if len(graph.outputs) != len(holder.outputs):
            raise _refused(place, f"the If {name!r} around it leaves outputs out")
        return None
    if holder.domain == "" and holder.op_type == "Loop":
        form = loop_form(holder, cx, short=True)
        if form is None:
            raise _refused(place, f"the Loop {name!r} around it leaves something out")
        return form
    kind = holder.op_type if holder.domain == "" else f"{holder.domain}::{holder.op_type}"
    raise _refused(place, f"it lies in {name!r}, and a {kind} runs to its end")


def _refused(place: Place, reason: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"a run can't leave behind {place.value.name!r}: {reason}",
        hint="--list shows all places",
    )
