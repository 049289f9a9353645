"""Places in a model at which a run can leave it, and what lies before and behind each."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass

from graphopt import ir
from graphopt.context import Context
from graphopt.control_flow.loops import LoopForm, loop_form
from graphopt.driver import context_for, copy
from graphopt.errors import UnsupportedModel
from graphopt.ops import guards
from graphopt.profile import Seen
from graphopt.profile.notes import asserted
from graphopt.transforms.profile.remove_profile_nodes import RemoveProfileNodes


@dataclass(frozen=True)
class Place:
    """A place at which a run can leave a model.

    Attributes:
        number: in preorder: those in bodies come before what their node computes. ``None`` for a place that
            is none of those that a model has, but named by somebody.
        value: the guarded value.
        graph: where the place is.
        after: the last node before the place; ``None`` for the beginning of the graph.
        seen: what the guard there asserts; ``None`` if there is no guard.
    """

    number: int | None
    value: ir.Value
    graph: ir.Graph
    after: ir.Node | None
    seen: Seen | None = None


def places_behind(model: ir.Model, values: Container[ir.Value]) -> list[Place]:
    """The places right behind those of ``values`` that inputs of graphs or nodes give, numbered from 0."""
    found: list[Place] = []
    for graph, node in _steps(model):
        for value in graph.inputs if node is None else node.outputs:
            if value in values:
                found.append(Place(len(found), value, graph, node))
    return found


def places_of_guards(model: ir.Model) -> tuple[ir.Model, list[Place]]:
    """A copy of ``model`` without guards and notes of profiles, and the places where guards stood.

    Raises:
        UnsupportedModel: something has come to rely on a guard, so that nothing reads it any more.
    """
    general = copy(model)
    found: list[Place] = []
    unguarded: dict[ir.Value, ir.Value] = {}
    last: dict[ir.Graph, ir.Node | None] = {}
    for graph, node in _steps(general):
        value = node.inputs[0] if node is not None and guards.is_guard(node) and node.inputs else None
        if node is None or value is None:
            last[graph] = node
            continue
        if not ir.is_read(node.outputs[0]):
            raise UnsupportedModel(
                f"nothing reads what the guard {ir.label(node)!r} gives: the model relies on it already",
                hint="insert-guards{pin=false} leaves that to later passes",
            )
        value = unguarded.get(value, value)
        unguarded[node.outputs[0]] = value
        found.append(Place(len(found), value, graph, last[graph], asserted(node)))
    with context_for(general) as cx:
        RemoveProfileNodes().run(general, cx)
    return general, found


def _steps(model: ir.Model) -> Iterator[tuple[ir.Graph, ir.Node | None]]:
    """Graphs as they are entered, and nodes as they are done."""
    for root in (model.graph, *(function.graph for function in model.functions.values())):
        for kind, graph, node in ir.in_order(root):
            if kind == "enter":
                yield graph, None
            elif kind == "define":
                yield graph, node


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
