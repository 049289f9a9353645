"""Empty models with the signature of another model."""

from __future__ import annotations

from collections.abc import Sequence

from graphopt import ir


def empty_like(
    general: ir.Model, inputs: Sequence[ir.Value] | None = None, outputs: Sequence[ir.Value] | None = None
) -> ir.Model:
    """A model without nodes that has the signature of ``general``.

    Args:
        inputs: its inputs, instead of copies of the inputs of ``general``.
        outputs: its outputs, instead of copies of the outputs of ``general``.
    """
    graph = general.graph
    made: dict[ir.Value, ir.Value] = {}  # outputs may repeat, or be inputs
    if inputs is None:
        made = {value: copy_declaration(value) for value in graph.inputs}
        inputs = list(made.values())
    if outputs is None:
        for value in graph.outputs:
            if value not in made:
                made[value] = copy_declaration(value)
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


def copy_declaration(value: ir.Value) -> ir.Value:
    """A value without producer that has the name and the declarations of ``value``."""
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
