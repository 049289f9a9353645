"""Both parts of a model as one again, for those who compare it with the whole."""

from __future__ import annotations

from graphopt import ir
from graphopt.specialize.bailouts.build import Bailout
from graphopt.specialize.bailouts.writer import Writer
from graphopt.specialize.skeleton import skeleton


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
