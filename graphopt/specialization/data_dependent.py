"""Which inner values of a model have shapes that the shapes of its inputs do not tell."""

from __future__ import annotations

from collections.abc import Iterator

from graphopt import ir
from graphopt.analysis.symbolic import Dim, symbols
from graphopt.context import Facts


def data_dependent_values(
    model: ir.Model, facts: Facts, *, bodies: bool = False
) -> Iterator[tuple[ir.Value, ir.TensorType]]:
    """Tensors of the main graph whose rank is unknown, or that have a size which nothing tells, in order.

    What tells a size are the dims of inputs, and those of values before: of a NonZero and all that gathers
    by the indices that it finds, only the NonZero is data_dependent_values.

    Args:
        bodies: also those of bodies, graph by graph; what loops carry, too.
    """
    told = {name for value in model.graph.inputs for dim in facts.shape(value) or () for name in symbols(dim)}
    for graph in ir.with_bodies(model.graph) if bodies else (model.graph,):
        given = () if graph is model.graph else graph.inputs
        for value in (*given, *(output for node in graph for output in node.outputs)):
            type_ = facts.type(value) or value.type
            if not value.name or not isinstance(type_, ir.TensorType):
                continue
            shape = facts.shape(value)
            news = [name for dim in shape or () for name in _made_up(dim) if name not in told]
            if shape is None or news:
                told.update(news)
                yield value, type_


def _made_up(dim: Dim) -> list[str]:
    """The symbols in ``dim`` that stand for what is not known; the others are names that the model gives."""
    return [name for name, symbol in symbols(dim).items() if symbol.birth]
