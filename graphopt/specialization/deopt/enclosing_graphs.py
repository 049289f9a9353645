"""The graphs around an exit point, each split into the nodes before and after it."""

from __future__ import annotations

from graphopt import ir
from graphopt.context import Context
from graphopt.control_flow.loops import LoopForm, loop_form
from graphopt.errors import UnsupportedModel
from graphopt.specialization.deopt.exit_points import ExitPoint
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class Level:
    """A graph around an exit point, split in two.

    Attributes:
        graph: the main graph, or a body.
        holder: the If or Loop that contains it; ``None`` for the main graph.
        before: its nodes before the exit point, or before the node that contains the next inner level.
        after: its nodes after the exit point, or after the node that contains the next inner level.
        form: the holder, if it is a Loop.
    """

    graph: ir.Graph
    holder: ir.Node | None
    before: tuple[ir.Node, ...]
    after: tuple[ir.Node, ...]
    form: LoopForm | None = None


def levels_of(point: ExitPoint, cx: Context) -> list[Level]:
    """The graphs around ``point``, from the main graph to the graph that contains it.

    Raises:
        UnsupportedModel: a run can't exit at ``point``.
    """
    if ir.constant_of(point.value) is not None:
        raise _refused(point, "it is a constant")
    scopes, levels = cx.edit.scopes, []
    function = scopes.function(point.graph)
    if function is not None:
        raise _refused(
            point, f"it is in the function {function.domain}::{function.name}, which can't be left"
        )
    graph, nodes = point.graph, list(point.graph)
    first = second = 0 if point.after is None else nodes.index(point.after) + 1
    while True:
        holder = scopes.holder(graph)
        form = None if holder is None else _form(point, holder, graph, cx)
        levels.append(Level(graph, holder, tuple(nodes[:first]), tuple(nodes[second:]), form))
        if holder is None or holder.graph is None:
            break
        graph, nodes = holder.graph, list(holder.graph)
        first = nodes.index(holder)
        second = first + 1
    version = ir.standard_version(cx.edit.model.opset_imports)
    if len(levels) > 1 and version < 11:
        raise _refused(point, f"it is in a body, and opset {version} lacks the operators to leave one")
    return levels[::-1]


def _form(point: ExitPoint, holder: ir.Node, graph: ir.Graph, cx: Context) -> LoopForm | None:
    """``holder`` as a loop that can be left; ``None`` for an If."""
    name = ir.label(holder)
    if holder.domain == "" and holder.op_type == "If":
        if len(graph.outputs) != len(holder.outputs):
            raise _refused(point, f"the enclosing If {name!r} omits outputs")
        return None
    if holder.domain == "" and holder.op_type == "Loop":
        form = loop_form(holder, cx, short=True)
        if form is None:
            raise _refused(point, f"the enclosing Loop {name!r} omits inputs or outputs")
        return form
    kind = holder.op_type if holder.domain == "" else f"{holder.domain}::{holder.op_type}"
    raise _refused(point, f"it is in {name!r}, and a {kind} can't be left")


def _refused(point: ExitPoint, reason: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"can't exit behind {point.value.name!r}: {reason}",
        hint="graphopt bailout MODEL --list shows all exit points",
    )
