"""Find intermediate values with data-dependent shapes."""

from __future__ import annotations

from collections.abc import Iterator

from graphopt import ir
from graphopt.analysis.shape_inference.shape_facts import ShapeFacts
from graphopt.analysis.symbolic import Dim, symbols


def values_with_data_dependent_shapes(
    model: ir.Model, facts: ShapeFacts, *, bodies: bool = False
) -> Iterator[tuple[ir.Value, ir.TensorType]]:
    """Tensors of unknown rank, or with a new size that is not a function of known sizes.

    Sizes of inputs and of earlier values are known. For example, a NonZero is reported, but the nodes that
    use its indices are not.

    Args:
        bodies: include values of bodies, and loop-carried values; by default only the main graph.
    """
    known = {
        name for value in model.graph.inputs for dim in facts.shape(value) or () for name in symbols(dim)
    }
    for graph in ir.with_bodies(model.graph) if bodies else (model.graph,):
        given = () if graph is model.graph else graph.inputs
        for value in (*given, *(output for node in graph for output in node.outputs)):
            type_ = facts.type(value) or value.type
            if not value.name or not isinstance(type_, ir.TensorType):
                continue
            shape = facts.shape(value)
            fresh = [name for dim in shape or () for name in _fresh_symbols(dim) if name not in known]
            if shape is None or fresh:
                known.update(fresh)
                yield value, type_


def _fresh_symbols(dim: Dim) -> list[str]:
    """The symbols in ``dim`` for unknown sizes, without the names that the model declares."""
    return [name for name, symbol in symbols(dim).items() if symbol.birth]
