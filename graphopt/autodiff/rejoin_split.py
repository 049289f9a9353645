"""Join the two models of a split again, to compare them with the joint graph."""

from __future__ import annotations

from graphopt import ir
from graphopt.autodiff.split_joint import Split


def rejoin(found: Split) -> ir.Model:
    """A model that runs the forward and then the backward model, with the signature of the joint graph."""
    model = ir.clone(found.forward)
    for key, function in found.backward.functions.items():
        model.functions.setdefault(key, ir.clone_function(function))
    for domain, version in found.backward.opset_imports.items():
        model.opset_imports.setdefault(domain, version)
    edit, graph = ir.Editor(model), model.graph
    forward = {value.name: value for value in (*graph.outputs, *graph.inputs)}
    copier = ir.Cloner(value_name=edit.fresh_name, node_name=edit.fresh_node_name)
    for value in found.backward.graph.inputs:
        known = forward.get(value.name)
        if known is None:  # a cotangent
            assert value.name is not None and value.dtype is not None
            dims = None if value.shape is None else list(value.shape)
            known = edit.add_input(value.name, value.dtype, dims)
            if value.const_value is not None:
                edit.set_default(known, value.const_value)
        copier.values[value] = known
    for value in found.backward.graph.initializers.values():
        if value not in copier.values:
            assert value.const_value is not None
            copier.values[value] = edit.constant(graph, value.const_value, value.name or "constant")
    for node in copier.nodes(found.backward.graph):
        edit.append(graph, node)
    made = {value.name: copier.value(value) for value in found.backward.graph.outputs}
    outputs = []
    for like in found.joint.model.graph.outputs:
        value = made.get(like.name) or forward[like.name]
        if like.name in made:
            edit.rename(value, like.name or "")
        outputs.append(value)
    edit.set_outputs(graph, outputs)
    by_name = {value.name: value for value in graph.inputs}
    edit.set_inputs(
        graph, [by_name[value.name] for value in found.joint.model.graph.inputs if value.name in by_name]
    )
    return model
