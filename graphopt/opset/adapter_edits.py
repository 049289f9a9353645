"""Edits of the small model in which an adapter converts one node to another opset version."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from graphopt.errors import UnsupportedModel

#: Converts such a model, which imports only ai.onnx, by one opset version; the second argument is the node to
#: convert. The operands of the node are inputs or, if they are small constants, initializers. Raises
#: UnsupportedModel if the node can't be converted.
Adapter = Callable[[onnx.ModelProto, onnx.NodeProto], onnx.ModelProto]


def replace_node(
    model: onnx.ModelProto, node: onnx.NodeProto, made: Sequence[onnx.NodeProto], version: int
) -> onnx.ModelProto:
    """Replace ``node`` by ``made``, and set the opset version; returns ``model``."""
    place = next(index for index, item in enumerate(model.graph.node) if item is node or item == node)
    nodes = list(model.graph.node)
    nodes[place : place + 1] = made
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return set_opset(model, version)


def set_opset(model: onnx.ModelProto, version: int) -> onnx.ModelProto:
    """Set the opset version; returns ``model``."""
    model.opset_import[0].version = version
    return model


def attribute(node: onnx.NodeProto, name: str, default: Any = None) -> Any:
    """Attribute ``name`` of ``node`` as a Python value; strings are bytes."""
    found = next((item for item in node.attribute if item.name == name), None)
    return default if found is None else onnx.helper.get_attribute_value(found)


def without_attributes(node: onnx.NodeProto, *names: str) -> onnx.NodeProto:
    """A copy of ``node`` that lacks the attributes ``names``."""
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    del copy.attribute[:]
    copy.attribute.extend(item for item in node.attribute if item.name not in names)
    return copy


def rename_attribute_value(
    model: onnx.ModelProto, node: onnx.NodeProto, name: str, names: Mapping[bytes, str], version: int
) -> onnx.ModelProto:
    """Replace the value of the string attribute ``name``, and set the opset version; returns ``model``.

    Args:
        names: the new names by old name, the old default first.
    """
    value = attribute(node, name, next(iter(names)))
    if value not in names:
        raise UnsupportedModel(f"the {name} {value.decode()!r} of {node.op_type} is unknown")
    made = without_attributes(node, name)
    made.attribute.append(onnx.helper.make_attribute(name, names[value]))
    return replace_node(model, node, [made], version)


def dims(model: onnx.ModelProto, name: str) -> list[int | str] | None:
    """The dims of ``name``, with a unique string for each unknown dim; ``None`` for an unknown rank."""
    tensor = constant(model, name)
    if tensor is not None:
        return list(tensor.dims)
    known = next((item for item in model.graph.input if item.name == name), None)
    if known is None or not known.type.tensor_type.HasField("shape"):
        return None
    return [
        dim.dim_value if dim.HasField("dim_value") else dim.dim_param or f"{name}@{index}"
        for index, dim in enumerate(known.type.tensor_type.shape.dim)
    ]


def element_type(model: onnx.ModelProto, name: str) -> int:
    """The element type of ``name`` as in TensorProto, 0 if it is unknown."""
    tensor = constant(model, name)
    if tensor is not None:
        return tensor.data_type
    return next((item.type.tensor_type.elem_type for item in model.graph.input if item.name == name), 0)


def constant(model: onnx.ModelProto, name: str) -> onnx.TensorProto | None:
    """The contents of ``name``, if it is a small constant."""
    for item in model.graph.initializer:
        if item.name == name:
            return item
    for node in model.graph.node:
        if node.op_type == "Constant" and name in node.output and node.attribute[0].name == "value":
            return node.attribute[0].t
    return None


def constant_node(name: str, numbers: Sequence[float], dtype: int, shape: Sequence[int]) -> onnx.NodeProto:
    """A Constant with output ``name``; numbers out of range become infinite."""
    with np.errstate(over="ignore"):
        tensor = onnx.helper.make_tensor("", dtype, list(shape), list(numbers))
    return onnx.helper.make_node("Constant", [], [name], value=tensor)


def int64s(name: str, numbers: Sequence[int]) -> onnx.NodeProto:
    """A Constant with output ``name`` and int64 contents."""
    return constant_node(name, numbers, onnx.TensorProto.INT64, [len(numbers)])


def no_floats(name: str) -> onnx.NodeProto:
    """An empty Constant with output ``name``, for an input that must not be omitted."""
    return constant_node(name, [], onnx.TensorProto.FLOAT, [0])
