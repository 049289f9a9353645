"""References by name: quantization annotations and training info.

``GraphProto.quantization_annotation`` maps a tensor to the initializers of its scale and zero point. An
annotation is stored in ``Value.meta``, so that it follows the value, and refers to other values by name.
Those values must be kept (:func:`named`), and a new name must replace the old one in the annotation
(:func:`rename`). Graphs of training info also refer to initializers of the main graph by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx

from graphopt.ir._onnx_ir_without_sympy import onnx_ir
from graphopt.ir.constants import NAMESPACE
from graphopt.ir.nested_graphs import graphs_of, values_of, with_bodies

#: Key in ``Value.meta`` of onnx-ir's annotations: names by role, such as ``SCALE_TENSOR``.
_ROLES = "quant_parameter_tensor_names"
#: Key in ``graph.meta`` of the main graph: whether the model has annotations.
_ANNOTATED = NAMESPACE + "annotated"
#: Key in ``graph.meta`` of the main graph: names of its values that training info refers to.
MENTIONED = NAMESPACE + "mentioned"


def note_names(proto: onnx.ModelProto, model: onnx_ir.Model) -> None:
    """Record the references by name in ``model``, which was read from ``proto``."""
    meta = model.graph.meta
    for graph in graphs_of(model):
        if any(_ROLES in value.meta for value in values_of(graph)):
            meta[_ANNOTATED] = True
            break
    found: dict[str, None] = {}
    for info in proto.training_info:
        for graph_ in (info.initialization, info.algorithm):
            own = {*(item.name for item in graph_.input), *(item.name for item in graph_.initializer)}
            own.update(output for node in graph_.node for output in node.output)
            read = [name for node in graph_.node for name in node.input]
            found.update(dict.fromkeys(name for name in read if name and name not in own))
        bindings = (*info.initialization_binding, *info.update_binding)
        found.update(dict.fromkeys(binding.key for binding in bindings))
    if found:
        meta[MENTIONED] = frozenset(found)


def has_names(model: onnx_ir.Model) -> bool:
    """Whether ``model`` contains references by name."""
    return _ANNOTATED in model.graph.meta or MENTIONED in model.graph.meta


def named(model: onnx_ir.Model) -> frozenset[str]:
    """The names of values that annotations and training info refer to."""
    if not has_names(model):
        return frozenset()
    found = set(model.graph.meta.get(MENTIONED, ()))
    for roles in _annotations(model):
        found.update(roles.values())
    return frozenset(found)


def rename(model: onnx_ir.Model, old: str, new: str, within: onnx_ir.Graph | None = None) -> None:
    """Rename ``old`` to ``new`` in annotations, of all graphs, or of one graph and its bodies."""
    if _ANNOTATED not in model.graph.meta:
        return
    for graph in graphs_of(model) if within is None else with_bodies(within):
        for value in values_of(graph):
            roles = value.meta.get(_ROLES)
            if roles and old in roles.values():
                value.meta[_ROLES] = {role: new if name == old else name for role, name in roles.items()}


def transfer_annotation(new: onnx_ir.Value, old: onnx_ir.Value, *, name: bool) -> None:
    """Transfer the annotation of ``old`` to ``new``, an equal value.

    Args:
        new: replaces ``old``.
        old: the replaced value.
        name: whether the name is also transferred. If so, an annotation of ``new`` is replaced.
    """
    roles = old.meta.get(_ROLES)
    if roles and (name or not new.meta.get(_ROLES)):
        new.meta[_ROLES] = dict(roles)


def remove_invalid_annotations(graph: onnx.GraphProto, outer: Sequence[onnx.GraphProto] = ()) -> None:
    """Remove duplicate annotations of ``graph``, and annotations that refer to unknown names."""
    if not graph.quantization_annotation:
        return
    names: set[str] = set()
    for holder in (*outer, graph):
        names.update(item.name for item in (*holder.input, *holder.initializer))
        names.update(item.values.name for item in holder.sparse_initializer)
        names.update(output for node in holder.node for output in node.output)
    kept = {
        annotation.tensor_name: annotation
        for annotation in graph.quantization_annotation
        if all(entry.value in names for entry in annotation.quant_parameter_tensor_names)
    }
    if len(kept) != len(graph.quantization_annotation):
        items = list(kept.values())
        del graph.quantization_annotation[:]
        graph.quantization_annotation.extend(items)


def _annotations(model: onnx_ir.Model) -> Iterator[dict[str, str]]:
    if _ANNOTATED in model.graph.meta:
        for graph in graphs_of(model):
            for value in values_of(graph):
                roles = value.meta.get(_ROLES)
                if roles:
                    yield roles
