"""Enumerate the points of a model at which a run can exit, and select one by number or name."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import replace

from graphopt import ir
from graphopt.analysis.data_dependent_shapes import values_with_data_dependent_shapes
from graphopt.context import context_for
from graphopt.errors import UnsupportedModel, UsageError, unknown
from graphopt.model_arguments import copy
from graphopt.ops import graphopt_operators
from graphopt.profile import Profile, ValueProfile, check_profile
from graphopt.profile.annotations import annotate, assertion_of
from graphopt.transforms.profile.insert_guards import InsertGuards
from graphopt.transforms.profile.remove_profile_nodes import RemoveProfileNodes
from graphopt.util.lazy_dataclass import dataclass
from graphopt.util.parse_values import parse_natural


@dataclass(frozen=True)
class ExitPoint:
    """A point at which a run can exit a model: directly after a value.

    Attributes:
        number: its index; points in a body precede the outputs of the node that contains it. ``None`` for a
            point that is not enumerated but was selected by the name of its value.
        value: the value.
        graph: the graph that contains the point.
        after: the last node before the point; ``None`` for the beginning of the graph.
        assertion: the assertion of the guard at this point; ``None`` without a guard.
    """

    number: int | None
    value: ir.Value
    graph: ir.Graph
    after: ir.Node | None
    assertion: ValueProfile | None = None


def exit_points_after(model: ir.Model, values: Container[ir.Value]) -> list[ExitPoint]:
    """The exit points after the graph inputs and node outputs that ``values`` contains, numbered from 0."""
    found: list[ExitPoint] = []
    for graph, node in _steps(model):
        for value in graph.inputs if node is None else node.outputs:
            if value in values:
                found.append(ExitPoint(len(found), value, graph, node))
    return found


def exit_points_of_guards(model: ir.Model) -> tuple[ir.Model, list[ExitPoint]]:
    """A copy of ``model`` without guards and annotations, and the exit points at the removed guards.

    Raises:
        UnsupportedModel: a guard is unused, so rewrites already rely on it.
    """
    general = copy(model)
    found: list[ExitPoint] = []
    unguarded: dict[ir.Value, ir.Value] = {}
    last: dict[ir.Graph, ir.Node | None] = {}
    for graph, node in _steps(general):
        value = (
            node.inputs[0] if node is not None and graphopt_operators.is_guard(node) and node.inputs else None
        )
        if node is None or value is None:
            last[graph] = node
            continue
        if not ir.is_read(node.outputs[0]):
            raise UnsupportedModel(
                f"the guard {ir.label(node)!r} is unused: rewrites already rely on it",
                hint="insert-guards{pin=false} keeps guards in use",
            )
        value = unguarded.get(value, value)
        unguarded[node.outputs[0]] = value
        found.append(ExitPoint(len(found), value, graph, last[graph], assertion_of(node)))
    with context_for(general) as cx:
        RemoveProfileNodes().run(general, cx)
    return general, found


def _steps(model: ir.Model) -> Iterator[tuple[ir.Graph, ir.Node | None]]:
    """Yield each graph before its nodes, and each node after its bodies."""
    for root in (model.graph, *(function.graph for function in model.functions.values())):
        for kind, graph, node in ir.in_order(root):
            if kind == "enter":
                yield graph, None
            elif kind == "define":
                yield graph, node


@dataclass(frozen=True)
class ExitPoints:
    """The enumerated exit points of a model.

    Attributes:
        model: the general model, without guards, that contains the points.
        points: the exit points in preorder, numbered from 0.
    """

    model: ir.Model
    points: tuple[ExitPoint, ...]

    def at(self, text: str) -> ExitPoint:
        """The exit point after the value of this name, or with this number, such as ``3`` or ``#3``.

        Names take precedence, because values may have numbers as names.

        Raises:
            UsageError: the exit point does not exist.
        """
        if any(value.name == text for graph in ir.graphs_of(self.model) for value in ir.values_of(graph)):
            return self._behind(text)
        try:
            number = parse_natural(text.removeprefix("#"))
        except ValueError:
            return self._behind(text)
        if number >= len(self.points):
            count = len(self.points)
            hint = (
                f"they are 0 to {count - 1}; graphopt bailout MODEL --list shows them"
                if count
                else "give the name of a value instead"
            )
            raise UsageError(f"no exit point {number}", hint=hint)
        return self.points[number]

    def _behind(self, name: str) -> ExitPoint:
        known = next((point for point in self.points if point.value.name == name), None)
        if known is not None:
            return known
        values = [value for graph in ir.graphs_of(self.model) for value in ir.values_of(graph)]
        named = [value for value in values if value.name == name]
        if not named:
            names = [value.name or "" for value in values if ir.constant_of(value) is None]
            raise unknown("value", name, names, "graphopt bailout MODEL --list shows the exit points")
        found = exit_points_after(self.model, named)
        if not found or ir.constant_of(found[0].value) is not None:
            raise UsageError(f"can't exit behind {name!r}: it is a constant")
        return replace(found[0], number=None)


def exit_points_of(model: ir.Model, profile: Profile | None = None) -> ExitPoints:
    """The exit points after the values that ``profile`` guards, or after values with data-dependent shapes.

    Raises:
        UsageError: the profile is of another model.
    """
    if profile is not None:
        general, points = exit_points_of_guards(insert_profile_guards(model, profile))
        return ExitPoints(general, tuple(points))
    with context_for(model) as cx:
        values = {
            value
            for value, _ in values_with_data_dependent_shapes(model, cx.facts, bodies=True)
            if ir.constant_of(value) is None
        }
    return ExitPoints(model, tuple(exit_points_after(model, values)))


def insert_profile_guards(model: ir.Model, profile: Profile) -> ir.Model:
    """A copy of ``model`` with a guard after each value that ``profile`` constrains.

    Raises:
        UsageError: the profile is of another model.
    """
    check_profile(profile, model)
    found = copy(model)
    annotate(found, profile.values)
    with context_for(found) as cx:
        InsertGuards(pin=False).run(found, cx)
    return found
