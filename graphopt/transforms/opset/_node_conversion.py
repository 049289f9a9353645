"""The conversion of one node to another opset: its replacement, made by onnx's version converter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

import onnx

from graphopt import ir
from graphopt.context import Context
from graphopt.errors import UnsupportedModel
from graphopt.ops import traits
from graphopt.opset import convert
from graphopt.rewrite.replacement_builder import Builder
from graphopt.transforms.opset._attribute_references import (
    GRAPH_TYPES,
    References,
    differs_only_in,
    proto_of,
    variants_of,
)
from graphopt.transforms.opset._single_node_model import model_of, type_text
from graphopt.util.lazy_dataclass import dataclass


@dataclass
class NodeConversion:
    """The conversion of one node.

    Attributes:
        node: the original node.
        made: its replacement, as protos; empty for a Constant that becomes an initializer.
        outputs: the names in ``made`` of the node's outputs.
        input_indices: the indices of the node's inputs, by their names in ``made``.
        constants: new constants by name.
        references: for each attribute, the temporary attribute and the reference that it replaces.
        dropped: indices of unused optional outputs that are removed.
    """

    node: ir.Node
    made: list[onnx.NodeProto]
    outputs: list[str]
    input_indices: dict[str, int]
    constants: dict[str, onnx.TensorProto] = field(default_factory=dict)
    references: References = field(default_factory=dict)
    dropped: Sequence[int] = ()

    def apply(self, cx: Context, owner: str) -> None:
        """Update the node if it remains one node of the same operator; otherwise replace it for ``owner``."""
        for index in reversed(self.dropped):
            cx.edit.remove_node_output(self.node, index)
        builder = Builder(cx, self.node)
        # inputs of the node may have been replaced in the meantime
        values = {name: self.node.inputs[index] for name, index in self.input_indices.items()}
        only = self.made[0] if len(self.made) == 1 else None
        if only and only.op_type == self.node.op_type and len(only.output) == len(self.node.outputs):
            self._update(only, values, builder, cx)
            return
        for made in self.made:
            inputs = [self._value(name, values, builder) for name in made.input]
            attributes = [self._attribute(attribute) for attribute in made.attribute]
            outputs = builder.node(made.op_type, inputs, attributes, outputs=len(made.output))
            outputs = [outputs] if len(made.output) == 1 else outputs
            values.update(zip(made.output, outputs, strict=True))
        cx.edit.note_origin(builder.commit(), [self.node], owner)
        for old, name in zip(self.node.outputs, self.outputs, strict=True):
            if name and ir.is_read(old):
                was_output = old.is_graph_output()
                new = self._value(name, values, builder)
                assert new is not None
                cx.edit.replace(old, new)
                if not was_output:
                    cx.edit.transfer_name(new, old)
        cx.edit.remove(self.node)

    def _update(
        self, made: onnx.NodeProto, values: dict[str, ir.Value | None], builder: Builder, cx: Context
    ) -> None:
        node, edit = self.node, cx.edit
        kept = {attribute.name: attribute for attribute in made.attribute}
        for name, attribute in list(node.attributes.items()):
            if name not in kept:
                edit.set_attribute(node, name, None)
            elif not attribute.is_ref() and ir.serialize_attribute(attribute) == kept[name]:
                del kept[name]  # keeps the original attribute: a copy might lose information
        for name, proto in kept.items():
            edit.set_attribute(node, name, self._attribute(proto))
        for index, name in enumerate(made.input):
            value = self._value(name, values, builder)
            if index >= len(node.inputs) or node.inputs[index] is not value:
                edit.set_input(node, index, value)
        if len(made.input) < len(node.inputs):
            edit.trim_inputs(node, len(made.input))

    def _value(self, name: str, values: dict[str, ir.Value | None], builder: Builder) -> ir.Value | None:
        if name and name not in values:
            values[name] = builder.constant(ir.deserialize_tensor(self.constants[name]))
        return values[name] if name else None

    def _attribute(self, proto: onnx.AttributeProto) -> ir.Attr:
        stand_in, reference = self.references.get(proto.name, (None, None))
        if reference is not None and stand_in == proto:
            return reference
        return ir.deserialize_attribute(proto)


def conversion_of(node: ir.Node, source: int, target: int, cx: Context) -> NodeConversion | None:
    """The conversion of ``node``; unused outputs are removed if they prevent it."""
    try:
        return _conversion(node, source, target, cx)
    except UnsupportedModel:
        unread = _unread_outputs(node, source)
        if not unread:
            raise
        return _conversion(node, source, target, cx, unread)


def _unread_outputs(node: ir.Node, version: int) -> list[int]:
    """Indices of unused optional outputs of ``node`` whose removal does not change the others."""
    definition = ir.operator_schema("", node.op_type, version)
    if definition is None or node.op_type in traits.OUTPUTS_MATTER:
        return []
    return [
        index
        for index, (output, formal) in enumerate(zip(node.outputs, definition.outputs, strict=False))
        if formal.option == onnx.defs.OpSchema.FormalParameterOption.Optional
        and output.name
        and not (ir.is_read(output) or output.is_graph_output())
    ]


def _conversion(
    node: ir.Node, source: int, target: int, cx: Context, dropped: Sequence[int] = ()
) -> NodeConversion | None:
    """The conversion of ``node`` without the outputs ``dropped``; ``None`` if it needs no change."""
    if node.op_type == "Constant":
        return _constant_conversion(node, source, target, cx)
    named: dict[ir.Value, str] = {}
    for value in node.inputs:
        if value is not None:
            named.setdefault(value, f"i{len(named)}")
    proto, references = proto_of(node, named, dropped)
    types = {name: type_text(value, cx) for value, name in named.items()}
    types.update((f"o{index}", type_text(output, cx)) for index, output in enumerate(node.outputs))
    if convert.same_form(node.op_type, source, target):
        _check(proto, types, source, target)
        input_indices = {name: node.inputs.index(value) for value, name in named.items()}
        return (
            NodeConversion(node, [proto], list(proto.output), input_indices, dropped=dropped)
            if dropped
            else None
        )
    if any(attribute.type in GRAPH_TYPES for attribute in node.attributes.values()):
        raise UnsupportedModel(f"{node.op_type} of opset {source} means something else there")
    result = convert.convert(model_of(node, proto, named, source, cx), target)
    for name, value, variant in variants_of(node, proto, references, source, cx):
        try:
            other = convert.convert(model_of(node, variant, named, source, cx), target)
        except UnsupportedModel:
            other = None
        if other is None or not differs_only_in(other, result, references[name][0], value):
            raise UnsupportedModel(f"attribute {name!r} of {node.op_type} is the function's, and changes")
    constants = {tensor.name: tensor for tensor in result.graph.initializer}
    made = []
    for item in result.graph.node:
        if item.op_type == "Constant" and item.attribute[0].name == "value":
            constants[item.output[0]] = item.attribute[0].t
        else:
            made.append(item)
    for item in made:
        _check(item, types, source, target)
    conversion = NodeConversion(
        node,
        made,
        [output.name for output in result.graph.output],
        {name: node.inputs.index(value) for value, name in named.items()},
        constants,
        references,
        dropped,
    )
    _check_references(conversion)
    _check_constants(conversion, target, cx)
    return conversion


def _check(proto: onnx.NodeProto, types: dict[str, str | None], source: int, target: int) -> None:
    found = convert.obstacle(proto, types, source, target)
    if found is not None:
        raise UnsupportedModel(found)


def _check_references(conversion: NodeConversion) -> None:
    """Check that each reference to a function's attribute occurs exactly once in the result."""
    for name, (stand_in, _) in conversion.references.items():
        found = [item for made in conversion.made for item in made.attribute if item == stand_in]
        if len(found) != 1:
            raise UnsupportedModel(
                f"attribute {name!r} of {conversion.node.op_type} is the function's, and changes"
            )


def _check_constants(conversion: NodeConversion, target: int, cx: Context) -> None:
    """Check that a function that contains the node supports the types of new constants."""
    graph = conversion.node.graph
    for name in [
        name for made in conversion.made for name in made.input if name not in conversion.input_indices
    ]:
        tensor = conversion.constants.get(name)
        dtype = None if tensor is None else ir.DataType(tensor.data_type)
        if graph is not None and dtype and not cx.edit.supports_constant(graph, dtype, target):
            type_ = dtype.name.lower()
            raise UnsupportedModel(
                f"opset {target} lacks the {type_} constant that {conversion.node.op_type} needs"
            )


def _constant_conversion(node: ir.Node, source: int, target: int, cx: Context) -> NodeConversion | None:
    """A Constant with the attribute ``value``, for opsets that lack its other attributes."""
    bare = onnx.NodeProto(op_type=node.op_type, output=["o0"])
    misfit = convert.obstacle(bare, {"o0": type_text(node.outputs[0], cx)}, source, target)
    tensor = ir.constant_of(node.outputs[0])
    if misfit is not None:
        if node.graph is None or cx.edit.scopes.function(node.graph) is not None or tensor is None:
            raise UnsupportedModel(misfit)
        return NodeConversion(
            node, [], ["o0"], {}, {"o0": ir.serialize_tensor(tensor)}
        )  # the constant becomes an initializer
    if target >= 12 or "value" in node.attributes:
        return None
    if tensor is None:
        raise UnsupportedModel(f"opset {target} has no such Constant")
    made = onnx.NodeProto(op_type="Constant", output=["o0"])
    made.attribute.add(name="value", type=onnx.AttributeProto.TENSOR).t.CopyFrom(ir.serialize_tensor(tensor))
    return NodeConversion(node, [made], ["o0"], {})
