"""Nodes under another opset version of ai.onnx: what changes, and onnx's version converter, a node at a time.

The converter works on whole models and loses much of them: functions, bodies' contents, names,
types that it does not know. So it is handed models of one node, and only where an operator changes
in more than the types it takes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

import onnx
import onnx.defs

from graphopt.errors import UnsupportedModel
from graphopt.ops.facts import schema

#: The name of a Resize that is known not to shrink.
_GROWS = "grows"

#: The newest ai.onnx opset that the installed onnx knows.
NEWEST = int(onnx.defs.onnx_opset_version())


def convert(model: onnx.ModelProto, target: int) -> onnx.ModelProto:
    """A model of few nodes under opset ``target`` of ai.onnx, its only import.

    Raises:
        UnsupportedModel: a step on the way has no adapter, or the adapter refuses.
    """
    while (version := model.opset_import[0].version) != target:
        following = version + (1 if target > version else -1)
        changed = [node for node in model.graph.node if changes(node.op_type, version, following)]
        if all(same_form(node.op_type, version, following) for node in changed):
            model.opset_import[0].version = following
        else:
            model = _stepped(model, following, changed)
    return model


def changes(op_type: str, version: int, other: int) -> bool:
    """Whether the operator is defined anew between two opset versions."""
    before, after = schema("", op_type, version), schema("", op_type, other)
    if before is None or after is None:
        return before is not after
    return before.since_version != after.since_version


@lru_cache(maxsize=8192)
def same_form(op_type: str, version: int, other: int) -> bool:
    """Whether a node means the same under both: attributes, defaults, inputs and outputs are alike."""
    steps = range(min(version, other), max(version, other) + 1)
    found = [schema("", op_type, step) for step in steps]
    if any(definition is None or definition.deprecated for definition in found):
        return not any(found)  # an operator that ONNX does not know is the runtime's affair
    forms = [_form(definition) for definition in found if definition is not None]
    return all(form == forms[0] for form in forms)


def _form(definition: onnx.defs.OpSchema) -> object:
    attributes = sorted(
        (name, str(item.type), item.required, item.default_value.SerializeToString())
        for name, item in definition.attributes.items()
    )
    inputs = [(item.option, item.is_homogeneous) for item in definition.inputs]
    outputs = [(item.option, item.is_homogeneous) for item in definition.outputs]
    return attributes, inputs, outputs


def obstacle(node: onnx.NodeProto, types: Iterable[str | None], source: int, target: int) -> str | None:
    """Why ``node`` can't stand under opset ``target``, if its definition there tells.

    Args:
        node: as it stands under ``target``.
        types: of its inputs, as schemas write them (``tensor(float)``), where they are known.
        source: the version that it came from; what was beyond the definition there already is let be.
    """
    before, after = schema("", node.op_type, source), schema("", node.op_type, target)
    if after is None or after.deprecated:
        return None if after is before else f"opset {target} has no {node.op_type}"
    for attribute in node.attribute:
        if attribute.name not in after.attributes and (before is None or attribute.name in before.attributes):
            return f"{node.op_type} has no attribute {attribute.name!r} in opset {target}"
    for index, type_ in enumerate(types):
        if not (type_ is None or _takes(after, index, type_)) and (
            before is None or _takes(before, index, type_)
        ):
            return f"{node.op_type} takes no {type_} in opset {target}"
    return None


def _takes(definition: onnx.defs.OpSchema, index: int, type_: str) -> bool:
    inputs = definition.inputs
    if index >= len(inputs):
        variadic = inputs and inputs[-1].option == onnx.defs.OpSchema.FormalParameterOption.Variadic
        return bool(variadic and type_ in inputs[-1].types)
    return type_ in inputs[index].types


def _stepped(model: onnx.ModelProto, following: int, changed: list[onnx.NodeProto]) -> onnx.ModelProto:
    """``model`` after one step of onnx's converter."""
    from onnx import version_converter

    version = model.opset_import[0].version
    ops = ", ".join(dict.fromkeys(node.op_type for node in changed))
    for node in changed:
        adapt = _ADAPTERS.get((node.op_type, version, following))
        if adapt is not None:
            return adapt(model, node)
    try:
        return version_converter.convert_version(model, following)
    except (RuntimeError, version_converter.ConvertError) as error:  # the converter asserts what it supports
        raise UnsupportedModel(
            f"{ops} can't go from opset {version} to {following}: {_reason(str(error))}"
        ) from error


def _reason(told: str) -> str:
    """The telling part of an error of onnx's version converter."""
    if "No Adapter" in told:
        return "onnx's converter has no adapter for it"
    match = re.search(r"Assertion `.*?` failed: (.*)", told, re.S)
    return " ".join((match[1] if match and match[1].strip() else told).split())[-200:]


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


def _hardmax_from_12(model: onnx.ModelProto, node: onnx.NodeProto) -> onnx.ModelProto:
    """As onnx's converter does it for Softmax: over the flattened axes."""
    node.op_type = "Softmax"
    model = _stepped(model, 13, [node])
    for item in model.graph.node:
        item.op_type = "Hardmax" if item.op_type == "Softmax" else item.op_type
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


#: Steps that onnx's converter gets wrong, or refuses without need.
_ADAPTERS = {
    ("Upsample", 9, 10): _upsample_from_9,
    ("Resize", 10, 11): _resize_from_10,
    ("Hardmax", 12, 13): _hardmax_from_12,
    ("GroupNormalization", 20, 21): _group_normalization_from_20,
}
