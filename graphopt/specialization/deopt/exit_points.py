"""Places in a model at which a run can leave it, and what lies before and behind each."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, replace

from graphopt import ir
from graphopt.driver import context_for, copy
from graphopt.errors import UnsupportedModel, UsageError, unknown
from graphopt.ops import dialects
from graphopt.profile import Profile, Seen, check_profile
from graphopt.profile.annotations import asserted, note
from graphopt.specialization.data_dependent import unforeseen
from graphopt.transforms.profile.insert_guards import InsertGuards
from graphopt.transforms.profile.remove_profile_nodes import RemoveProfileNodes
from graphopt.util.coerce import parse_natural


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
        value = node.inputs[0] if node is not None and dialects.is_guard(node) and node.inputs else None
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
class Places:
    """The places of a model.

    Attributes:
        model: general, without guards: what the places are of.
        places: in preorder, numbered from 0.
    """

    model: ir.Model
    places: tuple[Place, ...]

    def at(self, text: str) -> Place:
        """The place behind the value of this name, or of this number, such as ``3`` or ``#3``.

        A name wins over a number, so that values called by numbers can be named.

        Raises:
            UsageError: there is none.
        """
        if any(value.name == text for graph in ir.graphs_of(self.model) for value in ir.values_of(graph)):
            return self._behind(text)
        try:
            number = parse_natural(text.removeprefix("#"))
        except ValueError:
            return self._behind(text)
        if number >= len(self.places):
            count = len(self.places)
            hint = f"they are 0 to {count - 1}, as --list tells" if count else "name a value instead"
            raise UsageError(f"there is no place {number}", hint=hint)
        return self.places[number]

    def _behind(self, name: str) -> Place:
        known = next((place for place in self.places if place.value.name == name), None)
        if known is not None:
            return known
        values = [value for graph in ir.graphs_of(self.model) for value in ir.values_of(graph)]
        named = [value for value in values if value.name == name]
        if not named:
            names = [value.name or "" for value in values if ir.constant_of(value) is None]
            raise unknown("value", name, names, "--list shows places; any other value can be named, too")
        found = places_behind(self.model, named)
        if not found or ir.constant_of(found[0].value) is not None:
            raise UsageError(f"{name!r} is a constant, behind which nothing can be cut")
        return replace(found[0], number=None)


def places_of(model: ir.Model, profile: Profile | None = None) -> Places:
    """The places behind values that guards of ``profile`` are about; without one, behind unforeseen values.

    Raises:
        UsageError: the profile is of another model.
    """
    if profile is not None:
        general, places = places_of_guards(guarded_by(model, profile))
        return Places(general, tuple(places))
    with context_for(model) as cx:
        values = {
            value for value, _ in unforeseen(model, cx.facts, bodies=True) if ir.constant_of(value) is None
        }
    return Places(model, tuple(places_behind(model, values)))


def guarded_by(model: ir.Model, profile: Profile) -> ir.Model:
    """A copy of ``model`` with a guard behind each value that ``profile`` tells something of.

    Raises:
        UsageError: the profile is of another model.
    """
    check_profile(profile, model)
    found = copy(model)
    note(found, profile.values)
    with context_for(found) as cx:
        InsertGuards(pin=False).run(found, cx)
    return found
