"""Steps to an older opset version that onnx's version converter lacks or converts incorrectly.

Most of them reject nodes that the older version can't represent. The converter, or a comparison of
definitions, would accept such nodes and change their meaning.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import onnx
import onnx.defs

from graphopt import ir
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

_Kind = onnx.defs.OpSchema.AttrType
#: Coordinate modes of Resize before opset 19, the default first.
_COORDINATES = (
    *(b"half_pixel", b"pytorch_half_pixel", b"align_corners", b"asymmetric"),
    *(b"tf_half_pixel_for_nn", b"tf_crop_and_resize"),
)


def _softmax_to_12(model: onnx.ModelProto, node: onnx.NodeProto) -> onnx.ModelProto:
    """Over one axis: both versions agree on the last axis; another axis is transposed to the end and back."""
    axis = attribute(node, "axis", -1)
    shape = dims(model, node.input[0])
    if shape is None:
        raise UnsupportedModel("its rank is unknown")
    rank = len(shape)
    axis += rank if axis < 0 else 0
    last = onnx.helper.make_node(node.op_type, list(node.input), list(node.output), axis=rank - 1)
    if axis == rank - 1:
        return replace_node(model, node, [last], 12)
    order = [index for index in range(rank) if index != axis] + [axis]
    back = [order.index(index) for index in range(rank)]
    last.input[0], last.output[0] = f"{node.name}_moved", f"{node.name}_done"
    made = [
        onnx.helper.make_node("Transpose", [node.input[0]], [last.input[0]], perm=order),
        last,
        onnx.helper.make_node("Transpose", [last.output[0]], [node.output[0]], perm=back),
    ]
    return replace_node(model, node, made, 12)


def _split_to_17(model: onnx.ModelProto, node: onnx.NodeProto) -> onnx.ModelProto:
    """``num_outputs``, which allows a smaller last part, is replaced by explicit sizes."""
    if len(node.input) > 1 and node.input[1]:
        return set_opset(model, 17)
    axis = attribute(node, "axis", 0)
    shape = dims(model, node.input[0]) or []
    size = shape[axis] if -len(shape) <= axis < len(shape) else 0
    if not size or not isinstance(size, int):
        raise UnsupportedModel("the size of the split axis is unknown")
    count = len(node.output)
    part = -(-size // count)
    sizes = int64s(f"{node.name}_sizes", [min(part, size - part * index) for index in range(count)])
    made = onnx.helper.make_node("Split", [node.input[0], sizes.output[0]], list(node.output), axis=axis)
    return replace_node(model, node, [sizes, made], 17)


def _reduce(model: onnx.ModelProto, node: onnx.NodeProto) -> onnx.ModelProto:
    """The axes become an attribute. Rejects a node that reduces no axis if no axes are given."""
    version = model.opset_import[0].version - 1
    name = node.input[1] if len(node.input) > 1 else ""
    axes = constant(model, name)
    if name and axes is None:
        raise UnsupportedModel("'axes' would have to be constant")
    numbers = [] if axes is None else onnx.numpy_helper.to_array(axes).tolist()
    if not numbers and attribute(node, "noop_with_empty_axes", 0):
        raise UnsupportedModel(f"{node.op_type} can't do nothing in opset {version}")
    made = without_attributes(node, "noop_with_empty_axes")
    del made.input[1:]
    if numbers:
        made.attribute.append(onnx.helper.make_attribute("axes", numbers))
    return replace_node(model, node, [made], version)


def _inputs_to_attributes(
    names: Sequence[str], model: onnx.ModelProto, node: onnx.NodeProto
) -> onnx.ModelProto:
    """Inputs after the first become the attributes ``names``; they must be constant.

    A name such as ``=1`` states the only value that the input may have, because no attribute corresponds to
    the input.
    """
    version = model.opset_import[0].version - 1
    definition = ir.operator_schema("", node.op_type, version)
    assert definition is not None
    made = without_attributes(node)
    del made.input[1:]
    for name, value in zip(node.input[1:], names, strict=False):
        if not name:
            continue
        tensor = constant(model, name)
        if tensor is None:
            raise UnsupportedModel(f"{value.lstrip('=')!r} would have to be constant")
        array = onnx.numpy_helper.to_array(tensor)
        if value.startswith("="):
            if np.any(array != float(value[1:])):
                raise UnsupportedModel(f"opset {version} has nothing for the input {name!r}")
            continue
        kind = definition.attributes[value].type
        if kind in (_Kind.FLOAT, _Kind.FLOATS) and not _is_single(array):
            raise UnsupportedModel(f"{value!r} would lose precision as an attribute")
        numbers = array.reshape(-1).tolist()
        made.attribute.append(
            onnx.helper.make_attribute(value, numbers if kind in (_Kind.INTS, _Kind.FLOATS) else numbers[0])
        )
    return replace_node(model, node, [made], version)


def _is_single(array: np.ndarray) -> bool:
    """Whether attributes, which are of single precision, can represent these numbers."""
    with np.errstate(over="ignore"):
        return bool(np.array_equal(array.astype(np.float32).astype(array.dtype), array, equal_nan=True))


def _clip_to_10(model: onnx.ModelProto, node: onnx.NodeProto) -> onnx.ModelProto:
    """In opset 10, an omitted bound is the largest number of single precision."""
    bounds = [name for name in node.input[1:] if name]
    if len(bounds) < 2 and element_type(model, node.input[0]) in (0, onnx.TensorProto.DOUBLE):
        raise UnsupportedModel("Clip of opset 10 can't leave numbers of double precision unbounded")
    return _inputs_to_attributes(("min", "max"), model, node)


def _resize_to_12(model: onnx.ModelProto, node: onnx.NodeProto) -> onnx.ModelProto:
    """In opset 12, only the sizes may be omitted; empty tensors replace other omitted inputs."""
    made = without_attributes(node)
    made.input.extend([""] * (3 - len(node.input)))
    fillers = []
    for index in (1, 2):
        if not made.input[index]:
            fillers.append(no_floats(f"{node.name}_no_{('roi', 'scales')[index - 1]}"))
            made.input[index] = fillers[-1].output[0]
    return replace_node(model, node, [*fillers, made], 12)


def _roi_align_to_15(model: onnx.ModelProto, node: onnx.NodeProto) -> onnx.ModelProto:
    """Opset 15 supports only the mode ``output_half_pixel``, which is not the default of opset 16."""
    if attribute(node, "coordinate_transformation_mode") != b"output_half_pixel":
        raise UnsupportedModel("RoiAlign of opset 15 has only the mode output_half_pixel")
    return replace_node(model, node, [without_attributes(node, "coordinate_transformation_mode")], 15)


def _grid_sample_to_19(model: onnx.ModelProto, node: onnx.NodeProto) -> onnx.ModelProto:
    """Opset 19 supports two spatial dimensions only, and names modes after them."""
    shape = dims(model, node.input[0])
    if shape is None or len(shape) != 4:
        raise UnsupportedModel("GridSample of opset 19 requires exactly two spatial axes")
    names = {b"linear": "bilinear", b"cubic": "bicubic", b"nearest": "nearest"}
    return rename_attribute_value(model, node, "mode", names, 19)


def _quantizer_to_12(model: onnx.ModelProto, node: onnx.NodeProto) -> onnx.ModelProto:
    """Opset 12 supports only one scale for the whole tensor."""
    if dims(model, node.input[1]) not in ([], [1]):
        raise UnsupportedModel(f"{node.op_type} of opset 12 requires one scale for the whole tensor")
    return replace_node(model, node, [without_attributes(node, "axis")], 12)


def _group_normalization_to_20(model: onnx.ModelProto, node: onnx.NodeProto) -> onnx.ModelProto:
    """Scale and bias per channel are applied after the normalization, which has the type ``stash_type``.

    GroupNormalization of opsets 18 to 20 has one scale per group, and is deprecated. InstanceNormalization
    with each group as one channel is equivalent.
    """
    x, scale, bias = node.input
    name, shape, dtype = node.name, dims(model, x), element_type(model, x)
    stash = attribute(node, "stash_type", onnx.TensorProto.FLOAT)
    if shape is None or not dtype:
        raise UnsupportedModel("the rank or type of the input of GroupNormalization is unknown")
    made, groups = [], attribute(node, "num_groups")
    if dtype != stash:
        made.append(onnx.helper.make_node("Cast", [x], [f"{name}_stashed"], to=stash))
        x = f"{name}_stashed"
    made += [
        constant_node(f"{name}_ones", [1] * groups, stash, [groups]),
        constant_node(f"{name}_zeros", [0] * groups, stash, [groups]),
        *_by_group(node, x, f"{name}_ones", f"{name}_zeros", f"{name}_normal"),
        int64s(f"{name}_column", [-1] + [1] * (len(shape) - 2)),
    ]
    normal = f"{name}_normal"
    if dtype != stash:
        made.append(onnx.helper.make_node("Cast", [normal], [f"{name}_cast"], to=dtype))
        normal = f"{name}_cast"
    made += [
        onnx.helper.make_node("Reshape", [scale, f"{name}_column"], [f"{name}_factor"]),
        onnx.helper.make_node("Reshape", [bias, f"{name}_column"], [f"{name}_term"]),
        onnx.helper.make_node("Mul", [normal, f"{name}_factor"], [f"{name}_scaled"]),
        onnx.helper.make_node("Add", [f"{name}_scaled", f"{name}_term"], list(node.output)),
    ]
    return replace_node(model, node, made, 20)


def _group_normalization_to_17(model: onnx.ModelProto, node: onnx.NodeProto) -> onnx.ModelProto:
    """With one scale and bias per group, it is InstanceNormalization with each group as one channel."""
    x, scale, bias = node.input
    return replace_node(model, node, _by_group(node, x, scale, bias, node.output[0]), 17)


def _by_group(node: onnx.NodeProto, x: str, scale: str, bias: str, result: str) -> list[onnx.NodeProto]:
    """InstanceNormalization of ``x`` with each group as one channel, and one scale and bias per group."""
    name = node.name
    normalize = onnx.helper.make_node(
        "InstanceNormalization", [f"{name}_grouped", scale, bias], [f"{name}_normalized"]
    )
    normalize.attribute.extend(item for item in node.attribute if item.name == "epsilon")
    return [
        onnx.helper.make_node("Shape", [x], [f"{name}_shape"]),
        int64s(f"{name}_rows", [0, attribute(node, "num_groups"), -1]),
        onnx.helper.make_node("Reshape", [x, f"{name}_rows"], [f"{name}_grouped"]),
        normalize,
        onnx.helper.make_node("Reshape", [f"{name}_normalized", f"{name}_shape"], [result]),
    ]


def _flatten_to_10(model: onnx.ModelProto, node: onnx.NodeProto) -> onnx.ModelProto:
    """In opset 10, axes are counted from the front."""
    axis = attribute(node, "axis", 1)
    shape = dims(model, node.input[0])
    if axis < 0 and shape is None:
        raise UnsupportedModel("Flatten of opset 10 counts axes from the front, and the rank is unknown")
    made = without_attributes(node, "axis")
    made.attribute.append(onnx.helper.make_attribute("axis", axis + len(shape or ()) if axis < 0 else axis))
    return replace_node(model, node, [made], 10)


def _same_shapes(model: onnx.ModelProto, node: onnx.NodeProto) -> onnx.ModelProto:
    """The older version does not broadcast operands."""
    version = model.opset_import[0].version - 1
    shapes = [dims(model, name) for name in node.input]
    if len(shapes) > 1 and (None in shapes or any(shape != shapes[0] for shape in shapes)):
        raise UnsupportedModel(f"{node.op_type} of opset {version} takes equal shapes only")
    return set_opset(model, version)


def _allows_only(
    name: str, values: Sequence[bytes], model: onnx.ModelProto, node: onnx.NodeProto
) -> onnx.ModelProto:
    """The older version supports only ``values`` of the attribute ``name``."""
    version = model.opset_import[0].version - 1
    value = attribute(node, name, values[0])
    if value not in values:
        raise UnsupportedModel(f"{node.op_type} has no {name} {value.decode()!r} in opset {version}")
    return set_opset(model, version)


#: Steps by operator, opset version, and previous opset version.
OLDER: dict[tuple[str, int, int], Adapter] = {
    ("Softmax", 13, 12): _softmax_to_12,
    ("LogSoftmax", 13, 12): _softmax_to_12,
    ("Hardmax", 13, 12): _softmax_to_12,
    ("Split", 18, 17): _split_to_17,
    ("Resize", 13, 12): _resize_to_12,
    ("GroupNormalization", 21, 20): _group_normalization_to_20,
    ("GroupNormalization", 18, 17): _group_normalization_to_17,
    ("RoiAlign", 16, 15): _roi_align_to_15,
    ("GridSample", 20, 19): _grid_sample_to_19,
    ("QuantizeLinear", 13, 12): _quantizer_to_12,
    ("DequantizeLinear", 13, 12): _quantizer_to_12,
    ("Flatten", 11, 10): _flatten_to_10,
    ("ReduceSum", 13, 12): _reduce,
    **{
        (f"Reduce{kind}", 18, 17): _reduce
        for kind in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare")
    },
    **{(name, 8, 7): _same_shapes for name in ("Max", "Mean", "Min", "Sum")},
    ("Pad", 19, 18): partial(_allows_only, "mode", (b"constant", b"reflect", b"edge")),
    ("Resize", 19, 18): partial(_allows_only, "coordinate_transformation_mode", _COORDINATES),
    ("ScatterElements", 18, 17): partial(_allows_only, "reduction", (b"none", b"add", b"mul")),
    ("ScatterND", 18, 17): partial(_allows_only, "reduction", (b"none", b"add", b"mul")),
    ("Dropout", 12, 11): partial(_inputs_to_attributes, ("ratio", "=0")),
    ("Clip", 11, 10): _clip_to_10,
    ("Pad", 11, 10): partial(_inputs_to_attributes, ("pads", "value")),
    ("Slice", 10, 9): partial(_inputs_to_attributes, ("starts", "ends", "axes", "=1")),
    ("TopK", 10, 9): partial(_inputs_to_attributes, ("k",)),
}
