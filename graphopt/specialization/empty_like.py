"""Models that are called like others, and compute nothing yet."""

from __future__ import annotations

from collections.abc import Sequence

from graphopt import ir


def empty_like(
    general: ir.Model, inputs: Sequence[ir.Value] | None = None, outputs: Sequence[ir.Value] | None = None
) -> ir.Model:
    """A model called like ``general`` that computes nothing yet.

    Args:
        inputs: those that it has instead, which nothing makes.
        outputs: the same.
    """
    graph = general.graph
    made: dict[ir.Value, ir.Value] = {}  # an output may be an input, or another output
    if inputs is None:
        made = {value: declared(value) for value in graph.inputs}
        inputs = list(made.values())
    if outputs is None:
        for value in graph.outputs:
            if value not in made:
                made[value] = declared(value)
        outputs = [made[value] for value in graph.outputs]
    overridable = [value for value in inputs if value.const_value is not None]
    bare = ir.Graph(
        inputs,
        outputs,
        nodes=[],
        initializers=overridable,
        doc_string=graph.doc_string,
        opset_imports=dict(general.opset_imports),
        name=graph.name,
        metadata_props=dict(graph.metadata_props),
    )
    bare.meta.update(graph.meta)
    return ir.model_of(bare, general)


def declared(value: ir.Value) -> ir.Value:
    """A value of the same name and declarations that nothing makes."""
    copy = ir.Value(
        name=value.name,
        type=value.type,
        shape=None if value.shape is None else value.shape.copy(),
        doc_string=value.doc_string,
        const_value=value.const_value if value.is_graph_input() else None,
        metadata_props=dict(value.metadata_props),
    )
    copy.meta.update(value.meta)
    return copy
