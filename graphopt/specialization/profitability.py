"""Whether a specialization is worth the guard before it, as far as the graphs tell."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from graphopt import ir
from graphopt.context import Context, context_for
from graphopt.control_flow.loops import loop_form, trips_of
from graphopt.profile import Guard, SpecializationKind, Variant
from graphopt.specialization.guard_nodes import GuardNodes
from graphopt.specialization.specialize_inputs import specialize_inputs

#: Nodes that take as long as a guard and its If.
_GUARD = 8
#: Nodes that take as long as it takes to begin another trip.
_TRIP = {"Loop": 2, "Scan": 1}
#: Trips that a loop is taken to make if their number is not known.
_TRIPS = 8


def steps(model: ir.Model, guard: Guard) -> int:
    """About how many nodes run where ``guard`` holds: of an If the larger branch, of a loop all trips."""
    found = specialize_inputs(model, guard)
    with context_for(found) as cx:
        done: dict[ir.Graph, int] = {}
        for function in _callees_first(found):
            _count(function.graph, done, cx)
        _count(found.graph, done, cx)
    return done[found.graph]


def _callees_first(model: ir.Model) -> list[ir.Function]:
    """The functions of ``model``, each behind those that it calls."""
    order: dict[ir.Function | None, None] = {None: None}
    waiting = list(model.functions.values())
    while waiting:
        function = waiting[-1]
        called = (model.functions.get(node.op_identifier()) for node in ir.walk_nodes(function.graph))
        missing = [callee for callee in called if callee not in order and callee not in waiting]
        if missing:
            waiting.extend(callee for callee in missing if callee is not None)
            continue
        order[waiting.pop()] = None
    return [function for function in order if function is not None]


def _count(graph: ir.Graph, done: dict[ir.Graph, int], cx: Context) -> None:
    """Count the steps of ``graph`` and of the bodies in it."""
    for inner in reversed(list(ir.with_bodies(graph))):
        done[inner] = sum(_steps(node, done, cx) for node in inner)


def _steps(node: ir.Node, done: dict[ir.Graph, int], cx: Context) -> int:
    if node.op_type == "Constant" and not node.domain:
        return 0
    function = cx.model.functions.get(node.op_identifier())
    if function is not None:
        return done[function.graph]
    bodies = [done[body] for body in ir.bodies(node)] if node.attributes else []
    if not bodies:
        return 1
    form = loop_form(node, cx)
    if form is None:
        return 1 + max(bodies)
    trips = trips_of(form, cx).most
    return 1 + (_TRIPS if trips is None else trips) * (_TRIP[node.op_type] + max(bodies))


def unprofitable(general: ir.Model, variant: ir.Model, guard: Guard) -> str | None:
    """Why ``variant`` is not worth its ``guard``; ``None`` if it is."""
    before, after = steps(general, guard), steps(variant, guard)
    if before - after > _GUARD:
        return None
    return f"about {after} nodes run instead of {before}, which does not pay for a guard"


#: Why a variant, the second model, is left out beside the general model, the first; ``None`` if it is not.
LeftOut = Callable[[ir.Model, ir.Model, Variant], str | None]


@dataclass(frozen=True)
class Policy:
    """Which variants are made and kept.

    Attributes:
        left_out: why one that was made is not kept.
        limits: of variants by behaviour; none of a behaviour that is missing.
        sees_absence: guards can see whether an input with a default is fed.
    """

    left_out: LeftOut
    limits: Mapping[SpecializationKind, int] = field(default_factory=dict)
    sees_absence: bool = False


def _too_little(general: ir.Model, model: ir.Model, variant: Variant) -> str | None:
    """Why a variant is not worth a guard in one model."""
    inputs = {value.name or "": value for value in general.graph.inputs}
    if not GuardNodes(ir.Editor(general), general.graph, inputs).asks(variant.guard):
        return "its guard would hold for all inputs"
    return unprofitable(general, model, variant.guard)


def _the_same(general: ir.Model, model: ir.Model, variant: Variant) -> str | None:
    """Why not even a bundle needs a variant: only known sizes make a difference to an equal graph."""
    if variant.kind is SpecializationKind.STATIC or ir.fingerprint(model) != ir.fingerprint(general):
        return None
    return "it would be the general model again"


#: Each variant has weights of its own in memory, and each guard is nodes that run.
ONE_MODEL = Policy(_too_little, limits={SpecializationKind.STATIC: 2, SpecializationKind.DYNAMIC: 1})
#: A guard costs next to nothing on the host: hardly smaller variants are kept, too.
BUNDLE = Policy(_the_same, sees_absence=True)
