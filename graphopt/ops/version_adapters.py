"""Steps from one opset version to the next that onnx's version converter gets wrong, or has not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import onnx
import onnx.defs

from graphopt import ir
from graphopt.errors import UnsupportedModel

#: The name of a Resize that is known not to shrink.
_GROWS = "grows"
#: The name of a node with attributes that are the function's: what it becomes must do for all values of them.
REFERRING = "referring"

_Kind = onnx.defs.OpSchema.AttrType
Adapter = Callable[[onnx.ModelProto, onnx.NodeProto], onnx.ModelProto]


def _resize_from_10(model: onnx.ModelProto, node: onnx.NodeProto) -> onnx.ModelProto:
    """Coordinates were asymmetric; the nearest one was the next smaller, when shrinking the next larger."""
    scales = next((item for item in model.graph.initializer if item.name == node.input[1]), None)
    nearest = not any(item.name == "mode" and item.s != b"nearest" for item in node.attribute)
    rounding = "floor"
    if node.name == _GROWS:
        pass
    elif nearest and scales is None:
        raise UnsupportedModel("which is the nearest pixel depends on scales that are not constant")
    elif nearest and scales is not None:
        factors = onnx.numpy_helper.to_array(scales)
        rounding = "ceil" if factors.min(initial=1) < 1 else "floor"
        if factors.min(initial=1) < 1 < factors.max(initial=1):
            raise UnsupportedModel("one axis grows and one shrinks, with different nearest pixels")
    made = onnx.helper.make_node(
        "Resize",
        [node.input[0], "", node.input[1]],
        list(node.output),
        coordinate_transformation_mode="asymmetric",
        nearest_mode=rounding,
    )
    made.attribute.extend(item for item in node.attribute if item.name == "mode")
    return _with(model, node, [made], 11)


def _upsample_from_9(model: onnx.ModelProto, node: onnx.NodeProto) -> onnx.ModelProto:
    """It became a Resize that never shrinks."""
    made = onnx.helper.make_node("Resize", list(node.input), list(node.output), name=_GROWS)
    made.attribute.extend(node.attribute)
    return _with(model, node, [made], 10)


def _softmax_from_12(model: onnx.ModelProto, node: onnx.NodeProto) -> onnx.ModelProto:
    """Over the flattened axes; onnx's converter, which spares that for some, has to know the axis."""
    if node.name == REFERRING:
        shape, flat, done = (f"{node.name}_{what}" for what in ("shape", "flat", "done"))
        flatten = onnx.helper.make_node("Flatten", [node.input[0]], [flat])
        flatten.attribute.extend(node.attribute)  # of the same default
        made = [
            onnx.helper.make_node("Shape", [node.input[0]], [shape]),
            flatten,
            onnx.helper.make_node(node.op_type, [flat], [done], axis=-1),
            onnx.helper.make_node("Reshape", [done, shape], list(node.output)),
        ]
        return _with(model, node, made, 13)
    from onnx import version_converter

    op_type, node.op_type = node.op_type, "Softmax"
    model = version_converter.convert_version(model, 13)
    for item in model.graph.node:
        item.op_type = op_type if item.op_type == "Softmax" else item.op_type
    return model


def _group_normalization_from_20(model: onnx.ModelProto, node: onnx.NodeProto) -> onnx.ModelProto:
    """Scale and bias were one for each group, and are one for each channel."""
    dims = next(item for item in model.graph.input if item.name == node.input[0]).type.tensor_type.shape.dim
    groups = next(item.i for item in node.attribute if item.name == "num_groups")
    channels = dims[1].dim_value if len(dims) > 1 else 0
    if not channels or groups < 1 or channels % groups:
        raise UnsupportedModel("the number of channels is unknown")
    numbers = {"column": [-1, 1], "repeats": [1, channels // groups], "flat": [-1]}
    made = [
        onnx.helper.make_node("Constant", [], [f"{node.name}_{name}"], value=_int64s(items))
        for name, items in numbers.items()
    ]
    for index in (1, 2):
        column, wide, flat = (f"{node.name}_{index}_{what}" for what in ("column", "wide", "flat"))
        made += [
            onnx.helper.make_node("Reshape", [node.input[index], f"{node.name}_column"], [column]),
            onnx.helper.make_node("Expand", [column, f"{node.name}_repeats"], [wide]),
            onnx.helper.make_node("Reshape", [wide, f"{node.name}_flat"], [flat]),
        ]
    changed = onnx.NodeProto()
    changed.CopyFrom(node)
    changed.input[1], changed.input[2] = f"{node.name}_1_flat", f"{node.name}_2_flat"
    return _with(model, node, [*made, changed], 21)


def _int64s(numbers: list[int]) -> onnx.TensorProto:
    return onnx.helper.make_tensor("", onnx.TensorProto.INT64, [len(numbers)], numbers)


def _with(
    model: onnx.ModelProto, node: onnx.NodeProto, made: list[onnx.NodeProto], version: int
) -> onnx.ModelProto:
    """``model`` with ``made`` in place of ``node``, under opset ``version``."""
    place = next(index for index, item in enumerate(model.graph.node) if item is node or item == node)
    nodes = list(model.graph.node)
    nodes[place : place + 1] = made
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    model.opset_import[0].version = version
    return model


def _reshape_from_13(model: onnx.ModelProto, node: onnx.NodeProto) -> onnx.ModelProto:
    """A shape that was read off a tensor by a step before holds no 0 that stands for another dim."""
    shapes = [name for item in model.graph.node if item.op_type == "Shape" for name in item.output]
    if node.input[1] in shapes:
        node.attribute.append(onnx.helper.make_attribute("allowzero", 1))
    model.opset_import[0].version = 14
    return model


def _softmax_to_12(model: onnx.ModelProto, node: onnx.NodeProto) -> onnx.ModelProto:
    """Over one axis: the last one is the same in both; another one is made the last for a while."""
    axis = next((item.i for item in node.attribute if item.name == "axis"), -1)
    known = [item for item in model.graph.input if item.name == node.input[0]]
    if not known or not known[0].type.tensor_type.HasField("shape"):
        raise UnsupportedModel("its rank is unknown")
    rank = len(known[0].type.tensor_type.shape.dim)
    axis += rank if axis < 0 else 0
    last = onnx.helper.make_node(node.op_type, list(node.input), list(node.output), axis=rank - 1)
    if axis == rank - 1:
        return _with(model, node, [last], 12)
    order = [index for index in range(rank) if index != axis] + [axis]
    back = [order.index(index) for index in range(rank)]
    last.input[0], last.output[0] = f"{node.name}_moved", f"{node.name}_done"
    made = [
        onnx.helper.make_node("Transpose", [node.input[0]], [last.input[0]], perm=order),
        last,
        onnx.helper.make_node("Transpose", [last.output[0]], [node.output[0]], perm=back),
    ]
    return _with(model, node, made, 12)


def _split_to_17(model: onnx.ModelProto, node: onnx.NodeProto) -> onnx.ModelProto:
    """``num_outputs`` told that a last part may be smaller; the sizes of the parts do, too."""
    if len(node.input) > 1 and node.input[1]:
        model.opset_import[0].version = 17
        return model
    axis = next((item.i for item in node.attribute if item.name == "axis"), 0)
    known = next((item for item in model.graph.input if item.name == node.input[0]), None)
    dims = [] if known is None else known.type.tensor_type.shape.dim
    size = dims[axis].dim_value if -len(dims) <= axis < len(dims) else 0
    if not size:
        raise UnsupportedModel("the size of what is split is unknown")
    count = len(node.output)
    part = -(-size // count)
    sizes = [min(part, size - part * index) for index in range(count)]
    told = onnx.helper.make_node("Constant", [], [f"{node.name}_sizes"], value=_int64s(sizes))
    made = onnx.helper.make_node("Split", [node.input[0], told.output[0]], list(node.output), axis=axis)
    return _with(model, node, [told, made], 17)


def _inputs_to_attributes(
    names: Sequence[str], model: onnx.ModelProto, node: onnx.NodeProto
) -> onnx.ModelProto:
    """Inputs behind the first become the attributes ``names``; they must be constant.

    A name that begins with ``=`` tells the only value that the input may have: ``=1``.
    """
    version = model.opset_import[0].version - 1
    definition = ir.operator_schema("", node.op_type, version)
    assert definition is not None
    constants = {item.name: item for item in model.graph.initializer}
    made = onnx.NodeProto()
    made.CopyFrom(node)
    del made.input[1:]
    for name, value in zip(node.input[1:], names, strict=False):
        if not name:
            continue
        if name not in constants:
            raise UnsupportedModel(f"{value.lstrip('=')!r} would have to be constant")
        array = onnx.numpy_helper.to_array(constants[name])
        if value.startswith("="):
            if np.any(array != float(value[1:])):
                raise UnsupportedModel(f"opset {version} has nothing for the input {name!r}")
            continue
        listed = definition.attributes[value].type in (_Kind.INTS, _Kind.FLOATS)
        numbers = array.reshape(-1).tolist()
        made.attribute.append(onnx.helper.make_attribute(value, numbers if listed else numbers[0]))
    return _with(model, node, [made], version)


#: Steps that onnx's converter gets wrong, or refuses without need.
ADAPTERS: dict[tuple[str, int, int], Adapter] = {
    ("Upsample", 9, 10): _upsample_from_9,
    ("Resize", 10, 11): _resize_from_10,
    ("Softmax", 12, 13): _softmax_from_12,
    ("LogSoftmax", 12, 13): _softmax_from_12,
    ("Hardmax", 12, 13): _softmax_from_12,
    ("GroupNormalization", 20, 21): _group_normalization_from_20,
    ("Reshape", 13, 14): _reshape_from_13,
    ("Softmax", 13, 12): _softmax_to_12,
    ("LogSoftmax", 13, 12): _softmax_to_12,
    ("Hardmax", 13, 12): _softmax_to_12,
    ("Split", 18, 17): _split_to_17,
    ("Dropout", 12, 11): partial(_inputs_to_attributes, ("ratio", "=0")),
    ("Clip", 11, 10): partial(_inputs_to_attributes, ("min", "max")),
    ("Pad", 11, 10): partial(_inputs_to_attributes, ("pads", "value")),
    ("Slice", 10, 9): partial(_inputs_to_attributes, ("starts", "ends", "axes", "=1")),
    ("TopK", 10, 9): partial(_inputs_to_attributes, ("k",)),
}
