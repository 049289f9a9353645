"""Liveness at an exit point: live values, and the rows that enclosing loops have produced so far."""

from __future__ import annotations

from collections.abc import Sequence

from graphopt import ir
from graphopt.context import Context
from graphopt.errors import UnsupportedModel
from graphopt.specialization.deopt.enclosing_graphs import Level
from graphopt.specialization.deopt.exit_points import ExitPoint
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class Live:
    """The values that are defined before an exit point and used after it.

    Attributes:
        values: the value at the exit point, then other non-constant values, model inputs last. The counter
            and the trip count of each enclosing loop are always included.
        depths: for each of them, the index of the level that defines it.
        rows: the used scan outputs of enclosing loops, each with the level of the loop; the rows of earlier
            iterations are live.
    """

    values: tuple[ir.Value, ...]
    depths: tuple[int, ...]
    rows: tuple[tuple[ir.Value, int], ...]


def live_at(point: ExitPoint, levels: Sequence[Level]) -> Live:
    """The values live at ``point``; ``levels`` are the graphs that enclose it."""
    read: dict[ir.Value, None] = {point.value: None}
    made: set[ir.Value] = set()
    rows: list[tuple[ir.Value, int]] = []
    for depth in reversed(range(len(levels))):
        level = levels[depth]
        read.update((value, None) for node in level.after for value in ir.reads(node))
        made.update(output for node in level.after for output in node.outputs)
        read.update((value, None) for value in level.graph.outputs)
        if level.holder is not None:
            made.update(level.holder.outputs)
        if level.form is not None:
            count = level.form.node.inputs[0] if level.form.node.inputs else None
            read.update((value, None) for value in (level.graph.inputs[0], count) if value is not None)
            read.update((value, None) for value in ir.captures(level.graph))
            rows += [(output, depth - 1) for output in level.form.gathered if ir.is_read(output)]
    first, *others = (value for value in read if value not in made and not is_fixed(value))
    given = dict.fromkeys(value for value in others if is_given(value, levels[0].graph))
    values = (first, *(value for value in others if value not in given), *given)
    depths: dict[ir.Graph | None, int] = {level.graph: depth for depth, level in enumerate(levels)}
    return Live(values, tuple(depths[value.graph] for value in values), tuple(rows))


def is_fixed(value: ir.Value) -> bool:
    """Whether ``value`` is a constant or an initializer, which is copied instead of transferred."""
    return ir.constant_of(value) is not None or (value.is_initializer() and not value.is_graph_input())


def is_given(value: ir.Value, main: ir.Graph) -> bool:
    """Whether ``value`` is an input of the model, whose graph is ``main``."""
    return value.graph is main and value.is_graph_input()


def type_of(value: ir.Value, cx: Context) -> ir.TypeProtocol:
    """The type of a live value.

    Raises:
        UnsupportedModel: the type is unknown.
    """
    type_ = cx.facts.type(value) or value.type
    if type_ is None:
        raise UnsupportedModel(f"can't exit there: the type of {value.name!r} is unknown")
    return type_
