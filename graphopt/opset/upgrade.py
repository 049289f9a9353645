"""Steps to a newer opset version that onnx's version converter lacks or converts incorrectly.

:data:`ADAPTERS` contains these steps, and the steps to older versions.
"""

from __future__ import annotations

import numpy as np
import onnx

from graphopt.errors import UnsupportedModel
from graphopt.opset.adapter_edits import (
    Adapter,
    attribute,
    constant,
    constant_node,
    dims,
    element_type,
    int64s,
    no_floats,
    rename_attribute_value,
    replace_node,
    set_opset,
    without_attributes,
)
from graphopt.opset.downgrade import OLDER

#: The name of a Resize that is known not to shrink.
_GROWS = "grows"
#: The name of a node that refers to attributes of its function: the converted node must be correct for all of
#: their values.
REFERRING = "referring"
_LARGEST = float(np.finfo(np.float32).max)


def _clip_from_10(model: onnx.ModelProto, node: onnx.NodeProto) -> onnx.ModelProto:
    """The bounds become inputs of the operand's type. For double, the defaults become explicit."""
    dtype = _type_of(model, node)
    is_double = dtype == onnx.TensorProto.DOUBLE
    made = without_attributes(node, "min", "max")
    constants = []
    for name, default in (("min", -_LARGEST), ("max", _LARGEST)):
        bound = attribute(node, name, default if is_double else None)
        if bound is not None:
            constants.append(constant_node(f"{node.name}_{name}", [bound], dtype, []))
        made.input.append("" if bound is None else constants[-1].output[0])
    while not made.input[-1]:
        made.input.pop()
    return replace_node(model, node, [*constants, made], 11)


def _pad_from_10(model: onnx.ModelProto, node: onnx.NodeProto) -> onnx.ModelProto:
    """Pads and value become inputs; the value has the operand's type."""
    constants = [int64s(f"{node.name}_pads", attribute(node, "pads", []))]
    value = attribute(node, "value")
    if value is not None:
        constants.append(constant_node(f"{node.name}_value", [value], _type_of(model, node), []))
    made = without_attributes(node, "pads", "value")
    made.input.extend(item.output[0] for item in constants)
    return replace_node(model, node, [*constants, made], 11)


def _type_of(model: onnx.ModelProto, node: onnx.NodeProto) -> int:
    dtype = element_type(model, node.input[0])
    if not dtype:
        raise UnsupportedModel(f"the type of the input of {node.op_type} is unknown")
    return dtype


def _resize_from_10(model: onnx.ModelProto, node: onnx.NodeProto) -> onnx.ModelProto:
    """Opset 10 has asymmetric coordinates; ``nearest`` rounds up if an axis shrinks, otherwise down."""
    scales = constant(model, node.input[1])
    nearest = attribute(node, "mode", b"nearest") == b"nearest"
    rounding = "floor"
    if node.name == _GROWS:
        pass
    elif nearest and scales is None:
        raise UnsupportedModel("the nearest pixel depends on scales that are not constant")
    elif nearest and scales is not None:
        factors = onnx.numpy_helper.to_array(scales)
        rounding = "ceil" if factors.min(initial=1) < 1 else "floor"
        if factors.min(initial=1) < 1 < factors.max(initial=1):
            raise UnsupportedModel("one axis grows and one shrinks, with different nearest pixels")
    roi = no_floats(f"{node.name}_no_roi")  # required in opset 11
    made = onnx.helper.make_node(
        "Resize",
        [node.input[0], roi.output[0], node.input[1]],
        list(node.output),
        coordinate_transformation_mode="asymmetric",
        nearest_mode=rounding,
    )
    made.attribute.extend(item for item in node.attribute if item.name == "mode")
    return replace_node(model, node, [roi, made], 11)


def _resize_from_12(model: onnx.ModelProto, node: onnx.NodeProto) -> onnx.ModelProto:
    """Omit inputs that are empty tensors, which older versions require."""
    made = without_attributes(node)
    for index, name in enumerate(node.input):
        if index and 0 in (dims(model, name) or ()):
            made.input[index] = ""
    return replace_node(model, node, [made], 13)


def _upsample_from_9(model: onnx.ModelProto, node: onnx.NodeProto) -> onnx.ModelProto:
    """Convert to a Resize that never shrinks."""
    made = onnx.helper.make_node("Resize", list(node.input), list(node.output), name=_GROWS)
    made.attribute.extend(node.attribute)
    return replace_node(model, node, [made], 10)


def _softmax_from_12(model: onnx.ModelProto, node: onnx.NodeProto) -> onnx.ModelProto:
    """Flatten the axes; onnx's converter does so only for some axes, which it requires to be known."""
    if node.name == REFERRING:
        shape, flat, done = (f"{node.name}_{suffix}" for suffix in ("shape", "flat", "done"))
        flatten = onnx.helper.make_node("Flatten", [node.input[0]], [flat])
        flatten.attribute.extend(node.attribute)  # the attribute has the same default
        made = [
            onnx.helper.make_node("Shape", [node.input[0]], [shape]),
            flatten,
            onnx.helper.make_node(node.op_type, [flat], [done], axis=-1),
            onnx.helper.make_node("Reshape", [done, shape], list(node.output)),
        ]
        return replace_node(model, node, made, 13)
    from onnx import version_converter

    op_type, node.op_type = node.op_type, "Softmax"
    model = version_converter.convert_version(model, 13)
    for item in model.graph.node:
        item.op_type = op_type if item.op_type == "Softmax" else item.op_type
    return model


def _mean_variance_from_12(model: onnx.ModelProto, node: onnx.NodeProto) -> onnx.ModelProto:
    """Make the axes explicit: the operator's function in the standard is broken without axes."""
    made = without_attributes(node)
    if attribute(node, "axes") is None:
        made.attribute.append(onnx.helper.make_attribute("axes", [0, 2, 3]))
    return replace_node(model, node, [made], 13)


def _grid_sample_from_19(model: onnx.ModelProto, node: onnx.NodeProto) -> onnx.ModelProto:
    """Rename the modes, which opset 19 names after two dimensions."""
    return rename_attribute_value(
        model, node, "mode", {b"bilinear": "linear", b"bicubic": "cubic", b"nearest": "nearest"}, 20
    )


def _group_normalization_from_20(model: onnx.ModelProto, node: onnx.NodeProto) -> onnx.ModelProto:
    """Repeat scale and bias, one per group in opset 20, for each channel."""
    shape = dims(model, node.input[0]) or []
    groups = attribute(node, "num_groups")
    channels = shape[1] if len(shape) > 1 else 0
    if not channels or not isinstance(channels, int) or groups < 1 or channels % groups:
        raise UnsupportedModel("the number of channels is unknown")
    numbers = {"column": [-1, 1], "repeats": [1, channels // groups], "flat": [-1]}
    made = [int64s(f"{node.name}_{name}", items) for name, items in numbers.items()]
    for index in (1, 2):
        column, wide, flat = (f"{node.name}_{index}_{suffix}" for suffix in ("column", "wide", "flat"))
        made += [
            onnx.helper.make_node("Reshape", [node.input[index], f"{node.name}_column"], [column]),
            onnx.helper.make_node("Expand", [column, f"{node.name}_repeats"], [wide]),
            onnx.helper.make_node("Reshape", [wide, f"{node.name}_flat"], [flat]),
        ]
    changed = without_attributes(node)
    changed.input[1], changed.input[2] = f"{node.name}_1_flat", f"{node.name}_2_flat"
    return replace_node(model, node, [*made, changed], 21)


def _reshape_from_13(model: onnx.ModelProto, node: onnx.NodeProto) -> onnx.ModelProto:
    """Set ``allowzero`` if an earlier step computed the shape by a Shape: a 0 in this shape is a size."""
    shapes = [name for item in model.graph.node if item.op_type == "Shape" for name in item.output]
    if node.input[1] in shapes:
        node.attribute.append(onnx.helper.make_attribute("allowzero", 1))
    return set_opset(model, 14)


#: Steps that onnx's converter converts incorrectly, or rejects although they are possible.
ADAPTERS: dict[tuple[str, int, int], Adapter] = {
    ("Upsample", 9, 10): _upsample_from_9,
    ("Clip", 10, 11): _clip_from_10,
    ("Pad", 10, 11): _pad_from_10,
    ("Resize", 10, 11): _resize_from_10,
    ("MeanVarianceNormalization", 12, 13): _mean_variance_from_12,
    ("Resize", 12, 13): _resize_from_12,
    ("Softmax", 12, 13): _softmax_from_12,
    ("LogSoftmax", 12, 13): _softmax_from_12,
    ("Hardmax", 12, 13): _softmax_from_12,
    ("Reshape", 13, 14): _reshape_from_13,
    ("GridSample", 19, 20): _grid_sample_from_19,
    ("GroupNormalization", 20, 21): _group_normalization_from_20,
    **OLDER,
}
