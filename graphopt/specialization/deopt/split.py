"""The two parts of a model at a place: a prefix that runs up to there, and the graph that resumes there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from graphopt import ir
from graphopt.context import Context
from graphopt.driver import context_for
from graphopt.errors import UnsupportedModel
from graphopt.specialization.deopt.continuation import write_rest
from graphopt.specialization.deopt.exit_points import Place
from graphopt.specialization.deopt.levels import Level, levels_of
from graphopt.specialization.deopt.liveness import Live, is_given, live_at
from graphopt.specialization.deopt.prefix import Leaving
from graphopt.specialization.deopt.transfer import Crossing, scalar
from graphopt.specialization.deopt.writer import Writer
from graphopt.specialization.empty_like import declared, skeleton


@dataclass(frozen=True)
class Bailout:
    """A model in two parts. Run one after the other, they compute what the model computes.

    Attributes:
        place: where it is cut.
        prefix: takes the inputs of the model and, if the place lies in a loop, ``occurrence``: how often the
            place is reached before the run leaves there. Returns ``reached``, and what is handed over; that
            means something only if the place was reached.
        rest: takes the guarded value, the other live values, and those inputs of the model that it reads;
            returns the outputs of the model. A tensor of unknown rank is passed as two, the vector of its
            elements and its shape.
        handed: names of what the prefix returns besides and the rest takes.
        occurrence: the name of that input; ``None`` if the place is reached once at most.
        reached: the name of that output.
    """

    place: Place
    prefix: ir.Model = field(repr=False)
    rest: ir.Model = field(repr=False)
    handed: tuple[str, ...]
    occurrence: str | None
    reached: str


@dataclass(frozen=True)
class _AtOccurrence:
    """Leave when the place is reached for the k-th time, from 0."""

    counts = True
    wanted: ir.Value | None

    def is_hit(self, writer: Writer, before: ir.Value | None) -> ir.Value:
        if before is None or self.wanted is None:
            return writer.identity(writer.number(True))
        return writer.value("Equal", [before, self.wanted])

    def passed(self, writer: Writer) -> dict[ir.Value, ir.Value]:
        return {}


def bailout_at(model: ir.Model, place: Place) -> Bailout:
    """Cut ``model``, which is left as it is, at ``place``.

    Raises:
        UnsupportedModel: a run can't leave it there.
    """
    with context_for(model) as cx:
        levels = levels_of(place, cx)
        live = live_at(place, levels)
        crossings = _crossings(model, place, live, levels, cx)
        return _cut(model, place, levels, live, crossings, cx)


def _crossings(
    model: ir.Model, place: Place, live: Live, levels: Sequence[Level], cx: Context
) -> dict[ir.Value, Crossing]:
    """How live values reach the rest: under their own names, where these tell them apart."""
    names = Counter(value.name for graph in ir.graphs_of(model) for value in ir.values_of(graph))
    found: dict[ir.Value, Crossing] = {}
    # a branch may be wrong for all shapes but those that never take it, as runtimes would see at once
    certain = all(level.form is not None for level in levels[1:])
    for value in live.values:
        if is_given(value, model.graph):
            found[value] = Crossing(declared(value))
            continue
        name = value.name or "value"
        name = name if names[name] == 1 else cx.edit.fresh_name(name)
        shape = cx.shape(value)
        sizes = (
            None if shape is None else [dim if certain and isinstance(dim, int) else None for dim in shape]
        )
        found[value] = Crossing.of(name, _type(value, cx), sizes, cx.edit)
    for output, _ in live.rows:  # rows that are made up may have any sizes
        name = cx.edit.fresh_name(f"{output.name}_so_far")
        found[output] = Crossing.of(name, _type(output, cx), _open(output, cx), cx.edit)
    return found


def _type(value: ir.Value, cx: Context) -> ir.TypeProtocol:
    type_ = cx.facts.type(value) or value.type
    if type_ is None:
        raise UnsupportedModel(f"a run can't leave there: the type of {value.name!r} is not known")
    return type_


def _open(value: ir.Value, cx: Context) -> list[None] | None:
    """As many unknown sizes as ``value`` has dims."""
    shape = cx.shape(value)
    return None if shape is None else [None] * len(shape)


def _cut(
    model: ir.Model,
    place: Place,
    levels: Sequence[Level],
    live: Live,
    crossings: dict[ir.Value, Crossing],
    cx: Context,
) -> Bailout:
    fresh = cx.edit.fresh_name
    in_loop = any(level.form is not None for level in levels)
    told = fresh("reached")
    reached = scalar(told, ir.DataType.BOOL)
    occurrence = scalar(fresh("occurrence"), ir.DataType.INT64) if in_loop else None
    made = {key: crossing for key, crossing in crossings.items() if not is_given(key, model.graph)}
    outputs = [output for crossing in made.values() for output in crossing.outputs]
    names = tuple(output.name or "" for output in outputs)

    inputs = [declared(value) for value in model.graph.inputs]
    prefix = skeleton(model, [*inputs, *([] if occurrence is None else [occurrence])], [reached, *outputs])
    writer = Writer.of(prefix)
    writer.copier.values.update(zip(model.graph.inputs, inputs, strict=True))
    left = Leaving(levels, live, _AtOccurrence(occurrence), cx, resumes=False).write(writer)
    given = [value for key, crossing in made.items() for value in crossing.given(writer, left.live[key])]
    writer.give_all([left.hit, *given])

    rest = skeleton(model, [value for crossing in crossings.values() for value in crossing.inputs])
    writer = Writer.of(rest)
    taken = {key: crossing.taken(writer) for key, crossing in crossings.items()}
    rows = {output: taken.pop(output) for output, _ in live.rows}
    writer.copier.values.update(taken)
    writer.give_all(write_rest(writer, levels, rows))
    return Bailout(place, prefix, rest, names, None if occurrence is None else occurrence.name, told)


def rejoined(model: ir.Model, bailout: Bailout, occurrence: int = 0) -> ir.Model:
    """What runs the prefix of ``bailout``, and then the rest; all of ``model`` if the place is not reached.

    Args:
        model: the one that was cut.
        occurrence: how often the place is reached before the run leaves there.
    """
    joined = skeleton(model)
    writer = Writer.of(joined)
    inputs = {value.name: value for value in joined.graph.inputs}
    prefix, rest = bailout.prefix.graph, bailout.rest.graph
    known = writer.copier.values
    known.update({value: inputs.get(value.name) for value in (*model.graph.inputs, *prefix.inputs)})
    for value in prefix.inputs:
        if value.name == bailout.occurrence:
            known[value] = writer.number(occurrence)
    writer.copy(list(prefix))
    handed = {value.name: writer.stand_in(value) for value in prefix.outputs}

    def resume(inner: Writer) -> list[ir.Value]:
        given = {value: handed.get(value.name) or inputs.get(value.name) for value in rest.inputs}
        inner = inner.knowing(given)
        inner.copy(list(rest))
        return [inner.stand_in(value) for value in rest.outputs]

    def run_all(inner: Writer) -> list[ir.Value]:
        inner.copy(list(model.graph))
        return [inner.stand_in(value) for value in model.graph.outputs]

    types = [value.type for value in model.graph.outputs]
    writer.give_all(writer.either(handed[bailout.reached], resume, run_all, types))
    return joined
