"""One model in which a run that no guard foresaw goes on generally from the guard that it misses."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace

from graphopt import ir
from graphopt.driver import context_for
from graphopt.errors import UnsupportedModel
from graphopt.specialization.deopt.check import Check, checks_of
from graphopt.specialization.deopt.continuation import write_rest
from graphopt.specialization.deopt.exit_points import Place, places_of_guards
from graphopt.specialization.deopt.levels import Level, levels_of
from graphopt.specialization.deopt.liveness import Live, is_fixed, live_at
from graphopt.specialization.deopt.prefix import Leaving
from graphopt.specialization.deopt.writer import Writer
from graphopt.specialization.empty_like import skeleton


@dataclass(frozen=True)
class Inserted:
    """A model with bailouts.

    Attributes:
        model: computes what the original computes, whether guards hold or not. Where one was checked, there
            is a guard again, which always holds: facts rely on it. ``remove-profile-nodes`` ends that.
        places: where a run can leave.
        refused: where it can't, and guards are gone; with reasons.
    """

    model: ir.Model = field(repr=False)
    places: tuple[Place, ...]
    refused: tuple[tuple[Place, str], ...]


def insert_bailouts(model: ir.Model, *, most: int | None = None) -> Inserted:
    """Make of each guard of ``model`` a choice: where it does not hold, the rest runs as if there were none.

    The general rest is part of the model once for each guard, so that it grows by its own size each time.

    The seed is ``InsertBailOuts`` of PyTorch's JIT.

    Args:
        model: with guards, on which nothing has relied yet; it is left as it is.
        most: insert at no more points than that; the first ones count. Guards right behind one another, as
            those of inputs, are one point.
    """
    general, places = places_of_guards(model)
    with context_for(general) as cx:
        points: list[tuple[list[Place], list[Level]]] = []
        refused: list[tuple[Place, str]] = []
        for place in places:
            last = points[-1][0][0] if points else None
            if last is not None and (last.graph, last.after) == (place.graph, place.after):
                points[-1][0].append(place)
                continue
            try:
                if most is not None and len(points) == most:
                    raise UnsupportedModel(f"only {most} are wanted")
                points.append(([place], levels_of(place, cx)))
            except UnsupportedModel as failure:
                refused.append((place, failure.message))
        checks = checks_of([here for here, _ in points], [levels for _, levels in points], cx)
    current = general
    stand = {value: value for graph in ir.graphs_of(general) for value in ir.values_of(graph)}
    # from the last one on: so those that are still to come are around or before what is there already
    done: list[Place] = []
    for (here, levels), check in reversed(list(zip(points, checks, strict=True))):
        told = {item.value for item in check.assertions}
        refused += [
            (place, "it asserts nothing that can be checked") for place in here if place.value not in told
        ]
        if not check.assertions:
            continue
        here = [place for place in here if place.value in told]
        try:
            current, stand = _insert(current, stand, here[0], levels, check)
            done += here[::-1]
        except UnsupportedModel as failure:
            if any(later.asks_for(place.value) for later in checks for place in here):
                raise
            refused += [(place, failure.message) for place in here]
    return Inserted(current, tuple(done[::-1]), tuple(refused))


def _insert(
    current: ir.Model, stand: Mapping[ir.Value, ir.Value], place: Place, levels: Sequence[Level], check: Check
) -> tuple[ir.Model, dict[ir.Value, ir.Value]]:
    """``current`` with one more bailout, and what stands in it for values of the general model.

    Args:
        stand: the same for ``current``.
        place: in the general model, with its ``levels``.
    """
    with context_for(current) as cx:
        here = _same_place(current, stand, place, levels)
        general = live_at(place, levels)
        live = Live(
            tuple(stand[value] for value in general.values),
            general.depths,
            tuple((stand[output], depth) for output, depth in general.rows),
        )
        leaving = Leaving(levels_of(here, cx), live, check.moved(stand), cx, resumes=True)
        model = skeleton(current)
        writer = Writer.of(model)
        writer.copier.values.update(zip(current.graph.inputs, model.graph.inputs, strict=True))
        left = leaving.write(writer)
        outputs = list(current.graph.outputs)
        known = writer.copier.values
        early = {output for node in leaving.levels[0].before for output in node.outputs}
        late = [index for index, value in enumerate(outputs) if not _is_there(value, early)]

        def bail_out(inner: Writer) -> list[ir.Value]:
            values = {value: left.live[stand[value]] for value in general.values}
            rows = {output: left.live[stand[output]] for output, _ in general.rows}
            found = write_rest(inner.knowing(values), levels, rows)
            return [found[index] for index in late]

        types = [outputs[index].type for index in late]
        go_on = leaving.rest(0, [outputs[index] for index in late])
        results = writer.either(left.hit, bail_out, go_on, types)
        whole = [writer.stand_in(value) if index not in late else None for index, value in enumerate(outputs)]
        by_index = dict(zip(late, results, strict=True))
        writer.give_all([value or by_index[index] for index, value in enumerate(whole)])
        found = {value: known.get(now) for value, now in stand.items()}
        return model, {value: now for value, now in found.items() if now is not None}


def _is_there(output: ir.Value, early: Container[ir.Value]) -> bool:
    """Whether an output of the main graph is known where the run may leave."""
    return output in early or output.is_graph_input() or is_fixed(output)


def _same_place(
    current: ir.Model, stand: Mapping[ir.Value, ir.Value], place: Place, levels: Sequence[Level]
) -> Place:
    """``place`` of the general model in ``current``."""
    graph = current.graph
    for level in levels[1:]:
        assert level.holder is not None
        holder = stand[level.holder.outputs[0]].producer()
        assert holder is not None
        name = next(
            name
            for name, attribute in level.holder.attributes.items()
            if attribute.type is ir.AttributeType.GRAPH and attribute.value is level.graph
        )
        graph = holder.attributes[name].as_graph()
    after = None if place.after is None else stand[place.after.outputs[0]].producer()
    return replace(place, value=stand[place.value], graph=graph, after=after)
