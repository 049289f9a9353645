"""References to attributes of a function: placeholders for a conversion, and checks of the result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx

from graphopt import ir
from graphopt.context import Context
from graphopt.errors import UnsupportedModel
from graphopt.opset.upgrade import REFERRING

GRAPH_TYPES = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
#: Values in place of a reference to a function's attribute during a conversion. The first is the placeholder;
#: the others test whether the conversion depends on the value: common values, and invalid axes.
_STAND_INS: dict[ir.AttributeType, tuple[object, ...]] = {
    ir.AttributeType.INT: (1, 0, -1, 100),
    ir.AttributeType.FLOAT: (0.8125, 0.0, 1.0),
    ir.AttributeType.INTS: ((1,), (0,), (-1,), (0, 1), (100,)),
    ir.AttributeType.FLOATS: ((0.8125,), (0.0,), (1.0, 2.0)),
    ir.AttributeType.STRING: ("graphopt", "other"),
}

#: For each attribute, the placeholder and the reference that it replaces.
References = dict[str, tuple[onnx.AttributeProto, ir.Attr]]


def proto_of(
    node: ir.Node, named: dict[ir.Value, str], dropped: Sequence[int] = ()
) -> tuple[onnx.NodeProto, References]:
    """The node without the outputs ``dropped``, and the placeholders for references to attributes."""
    proto = onnx.NodeProto(op_type=node.op_type, name="n")
    proto.input.extend("" if value is None else named[value] for value in node.inputs)
    proto.output.extend(
        f"o{index}" if output.name and index not in dropped else ""
        for index, output in enumerate(node.outputs)
    )
    while dropped and not proto.output[-1]:
        del proto.output[-1]
    references = {}
    for name, attribute in node.attributes.items():
        if attribute.type in GRAPH_TYPES:
            continue
        if attribute.is_ref():
            if attribute.type not in _STAND_INS:
                raise UnsupportedModel(f"attribute {name!r} is the function's")
            references[name] = (onnx.helper.make_attribute(name, _STAND_INS[attribute.type][0]), attribute)
            proto.attribute.append(references[name][0])
        else:
            proto.attribute.append(ir.serialize_attribute(attribute))
    if references:
        proto.name = REFERRING
    return proto, references


def variants_of(
    node: ir.Node, proto: onnx.NodeProto, references: References, source: int, cx: Context
) -> Iterator[tuple[str, onnx.AttributeProto | None, onnx.NodeProto]]:
    """Variants of ``proto`` with other values of referenced attributes, or without optional ones."""
    definition = ir.operator_schema("", node.op_type, source)
    function = cx.edit.scopes.function(node.graph) if node.graph is not None else None
    for name, (stand_in, reference) in references.items():
        values: list[object] = list(_STAND_INS[reference.type][1:])
        known = None if definition is None else definition.attributes.get(name)
        if known is not None and known.default_value.type:
            values.append(onnx.helper.get_attribute_value(known.default_value))
        tried: list[onnx.AttributeProto | None] = [
            onnx.helper.make_attribute(name, value, attr_type=stand_in.type) for value in values
        ]
        default = None if function is None else function.attributes.get(reference.ref_attr_name or "")
        if (default is None or default.value is None) and (known is None or not known.required):
            tried.append(None)
        for attribute in tried:
            variant = onnx.NodeProto()
            variant.CopyFrom(proto)
            index = [item.name for item in proto.attribute].index(name)
            if attribute is None:
                del variant.attribute[index]
            else:
                variant.attribute[index].CopyFrom(attribute)
            yield name, attribute, variant


def differs_only_in(
    variant: onnx.ModelProto,
    result: onnx.ModelProto,
    stand_in: onnx.AttributeProto,
    value: onnx.AttributeProto | None,
) -> bool:
    """Whether ``variant`` is ``result`` with ``value`` in place of the attribute ``stand_in``."""
    return _with_attribute(variant, None, None) == _with_attribute(result, stand_in, value)


def _with_attribute(
    model: onnx.ModelProto, old: onnx.AttributeProto | None, new: onnx.AttributeProto | None
) -> onnx.ModelProto:
    """The nodes and initializers of ``model``, with the attribute ``old`` replaced by ``new``."""
    rest = onnx.ModelProto()
    rest.graph.node.extend(model.graph.node)
    rest.graph.initializer.extend(model.graph.initializer)
    for node in rest.graph.node:
        found = (new if item == old else item for item in node.attribute)
        kept = sorted((item for item in found if item is not None), key=lambda item: item.name)
        del node.attribute[:]
        node.attribute.extend(kept)
    return rest
