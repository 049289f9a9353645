"""What a run that leaves a model has to hand over: the live values, and what loops have gathered so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphopt import ir
from graphopt.specialization.deopt.exit_points import Place
from graphopt.specialization.deopt.levels import Level


@dataclass(frozen=True)
class Live:
    """What is computed before a place and read behind it.

    Attributes:
        values: the guarded value, then the others, which are no constants; those that the model is given
            come last. The counter of each loop around the place, and its trip count, are always there.
        depths: for each of them, in which of the levels around the place it lies.
        rows: outputs of loops around the place that gather, and the level in which the loop stands: their
            rows of the trips before are live.
    """

    values: tuple[ir.Value, ...]
    depths: tuple[int, ...]
    rows: tuple[tuple[ir.Value, int], ...]


def live_at(place: Place, levels: Sequence[Level]) -> Live:
    """What is live at ``place``, of which ``levels`` are all graphs around it."""
    read: dict[ir.Value, None] = {place.value: None}
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
    depths = {level.graph: depth for depth, level in enumerate(levels)}
    return Live(values, tuple(_depth(value, depths) for value in values), tuple(rows))


def is_fixed(value: ir.Value) -> bool:
    """Whether ``value`` needs not be handed over, as a constant or a weight of the model."""
    return ir.constant_of(value) is not None or (value.is_initializer() and not value.is_graph_input())


def is_given(value: ir.Value, main: ir.Graph) -> bool:
    """Whether ``value`` is an input of the model, whose graph is ``main``."""
    return value.graph is main and value.is_graph_input()


def _depth(value: ir.Value, depths: dict[ir.Graph, int]) -> int:
    assert value.graph is not None
    return depths[value.graph]
