"""Exit points of a model, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphopt import ir
from graphopt.context import context_for
from graphopt.errors import UnsupportedModel
from graphopt.ir.signature import text_of_type

if TYPE_CHECKING:
    from graphopt.context import Context
    from graphopt.profile import Profile


def described(model: ir.Model, profile: Profile | None) -> list[dict[str, Any]]:
    """The exit points of ``model``, or the guards that ``profile`` requires, with their descriptions."""
    from graphopt.specialization.deopt.enclosing_graphs import levels_of
    from graphopt.specialization.deopt.exit_points import exit_points_of

    found = exit_points_of(model, profile)
    with context_for(found.model) as cx:
        listed = []
        for place in found.points:
            refused, depth = None, None
            try:
                levels = levels_of(place, cx)
                depth = len(levels) - 1
            except UnsupportedModel as failure:
                refused = failure.message
            listed.append(
                {
                    "number": place.number,
                    "value": place.value.name,
                    "where": _location_text(place.graph, cx),
                    "depth": depth,
                    "type": _type(place.value, cx),
                    "seen": None if place.assertion is None else str(place.assertion),
                    "refused": refused,
                }
            )
    return listed


def _location_text(graph: ir.Graph, cx: Context) -> str:
    """The graph, and the graphs that contain it."""
    words = []
    function = cx.edit.scopes.function(graph)
    while (holder := cx.edit.scopes.holder(graph)) is not None:
        name = next(name for name, item in holder.attributes.items() if item.value is graph)
        words.append(f"{name} of {ir.label(holder)}")
        assert holder.graph is not None
        graph = holder.graph
    words.append("main graph" if function is None else f"function {function.name}")
    return ", ".join(words if len(words) == 1 else words[:-1])


def _type(value: ir.Value, cx: Context) -> str:
    type_, shape = cx.facts.type(value) or value.type, cx.shape(value)
    dims = "" if shape is None else f"[{', '.join(str(d) if isinstance(d, int) else '?' for d in shape)}]"
    return ("?" if type_ is None else text_of_type(type_)) + dims
