"""One portable model: ``If(guard) { specialized } else { general }``, for any onnxruntime."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graphopt import ir
from graphopt.errors import UnsupportedModel
from graphopt.profile import Guard
from graphopt.specialize.guard_nodes import GuardNodes
from graphopt.specialize.skeleton import skeleton

#: Smaller weights are not worth sharing between branches.
_SHARED = 256


@dataclass(frozen=True)
class Branch:
    """A model that is right where its guard holds.

    Attributes:
        name: what its nodes and values are called after.
        guard: what it assumes.
        model: called like the original, though its inputs may declare less.
        pins: inputs that are declared to be of the sizes that the guard checks, by a Reshape: in a branch
            onnxruntime believes nothing else.
    """

    name: str
    guard: Guard
    model: ir.Model
    pins: frozenset[str] = frozenset()


def emit_model(general: ir.Model, branches: Sequence[Branch]) -> ir.Model:
    """A model that takes the first of ``branches`` whose guard holds, and else is ``general``.

    It is called like ``general``. Weights belong to the branches, which share tensors: with external data
    each is written once.

    Raises:
        UnsupportedModel: see :func:`obstacle`.
    """
    reason = obstacle(general, branches)
    if reason is not None:
        raise UnsupportedModel(
            f"the variants can't go into one model: {reason}", hint="--emit bundle can hold them"
        )
    model = skeleton(general)
    edit = ir.Editor(model)
    for output in dict.fromkeys(
        model.graph.outputs
    ):  # nothing makes them yet, but no body may use their names
        if not output.is_graph_input():
            edit.fresh_name(output.name or "")
    inputs = {value.name or "": value for value in model.graph.inputs}
    computed = _computed(general)
    guards = GuardNodes(edit, model.graph, inputs)
    guards.prepare([branch.guard for branch in branches])
    place = model.graph
    for branch in branches:
        condition = guards.condition(branch.guard, place)
        if condition is None:
            raise UnsupportedModel(f"the guard of {branch.name} always holds")
        suffix = f"_{branch.name.replace('-', '_')}"
        then = _body(edit, branch.model, inputs, computed, suffix=suffix)
        if branch is branches[-1]:
            other = _body(edit, general, inputs, computed, suffix="")
        else:
            other = ir.Graph([], [], nodes=[], name=f"not_{branch.name}")
        node = edit.make_node(
            "If",
            [condition],
            {"then_branch": then, "else_branch": other},
            outputs=len(computed),
            name=f"guarded_{branch.name}",
        )
        edit.append(place, node)
        _return(edit, model.graph, place, node, computed)
        _pin(edit, then, branch, inputs)
        _import(model, branch.model)
        place = other
    ir.sort_model(model)
    return model


def lift_shared_weights(model: ir.Model) -> None:
    """Let weights that several branches hold be weights of the whole, which the file then holds once.

    onnxruntime packs those less well that a branch reads from outside.
    """
    edit = ir.Editor(model)
    places: dict[tuple[object, ...], list[ir.Value]] = {}
    for graph in ir.with_bodies(model.graph):
        for value in graph.initializers.values():
            tensor = value.const_value
            if graph is not model.graph and tensor is not None and tensor.nbytes >= _SHARED:
                places.setdefault(ir.storage_of(tensor), []).append(value)
    for values in places.values():
        tensor = values[0].const_value
        if len(values) < 2 or tensor is None:
            continue
        weight = edit.constant(model.graph, tensor, values[0].name or "weight")
        for value in values:
            edit.replace(value, weight)
            edit.remove_initializer(value)


def obstacle(general: ir.Model, branches: Sequence[Branch]) -> str | None:
    """Why the models can't become one; ``None`` if they can."""
    if general.ir_version < 4:
        return f"IR version {general.ir_version} has no weights in branches"
    version = ir.standard_version(general.opset_imports)
    if version < 11:
        return f"opset {version} has no If on what the guards need"
    for value in general.graph.outputs:
        if not isinstance(value.type, ir.TensorType) and version < 16:
            return f"before opset 16, output {value.name!r}, which is no tensor, can't come from an If"
    for branch in branches:
        if branch.model.functions.keys() - general.functions.keys():
            return f"{branch.name} has functions of its own"
        if branch.guard.absent:
            return (
                f"{branch.name} assumes that {branch.guard.absent[0]!r} is not fed, which a model can't see"
            )
    return None


def _computed(general: ir.Model) -> list[int]:
    """The outputs that branches have to compute: those that are no inputs, and each once."""
    outputs = general.graph.outputs
    return [
        index
        for index, value in enumerate(outputs)
        if not value.is_graph_input() and value not in outputs[:index]
    ]


def _body(
    edit: ir.Editor, model: ir.Model, inputs: dict[str, ir.Value], computed: list[int], *, suffix: str
) -> ir.Graph:
    """``model`` as a body that reads the inputs of the whole, and returns the outputs ``computed``."""
    copier = ir.Copier(
        {value: inputs[value.name or ""] for value in model.graph.inputs},
        value_name=lambda name: edit.fresh_name(f"{name}{suffix}"),
        node_name=lambda name: edit.fresh_node_name(f"{name}{suffix}"),
    )
    body = copier.body(model.graph, [model.graph.outputs[index] for index in computed])
    outputs: list[ir.Value] = []
    for value in body.outputs:
        if value.producer() is None or value.graph is not body:
            identity = edit.make_node("Identity", [value], name=f"{value.name}_returned")
            identity.outputs[0].type = value.type
            edit.append(body, identity)
            value = identity.outputs[0]
        value.shape = None  # branches may differ in it, and onnxruntime knows better
        outputs.append(value)
    edit.set_outputs(body, outputs)
    return body


def _pin(edit: ir.Editor, body: ir.Graph, branch: Branch, inputs: dict[str, ir.Value]) -> None:
    """Let ``body`` read inputs of sizes that onnxruntime knows."""
    own = dict.fromkeys(body.all_nodes())
    first = next(iter(body), None)
    for name, value in inputs.items():
        seen = branch.guard.inputs.get(name)
        if name not in branch.pins or seen is None or seen.shape is None or first is None:
            continue
        users = [(node, index) for node, index in value.uses() if node in own]
        if not users:
            continue
        dims = np.array([dim if isinstance(dim, int) else 0 for dim in seen.shape], np.int64)
        shape = edit.constant(body, dims, f"{name}_sizes")
        pin = edit.make_node("Reshape", [value, shape], name=f"{name}_pinned")
        edit.insert_before(first, [pin])
        for node, index in users:
            edit.set_input(node, index, pin.outputs[0])


def _import(model: ir.Model, other: ir.Model) -> None:
    """Import what ``other`` imports too."""
    for domain, version in other.opset_imports.items():
        model.opset_imports.setdefault(domain, version)


def _return(edit: ir.Editor, whole: ir.Graph, graph: ir.Graph, node: ir.Node, computed: list[int]) -> None:
    """Let ``graph`` return what ``node`` computes; the ``whole`` does so under its own names."""
    if graph is not whole:
        edit.set_outputs(graph, node.outputs)
    outputs = list(whole.outputs)
    for index, output in zip(computed, node.outputs, strict=True):
        declared = outputs[index]
        output.type = declared.type
        if graph is not whole:
            continue
        edit.take_over(output, declared)
        for place, value in enumerate(outputs):
            if value is declared:
                edit.set_output(graph, place, output)
