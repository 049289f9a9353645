"""convert-opset: convert a model to another version of the standard's operators."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import onnx

from graphopt import ir
from graphopt.context import Context
from graphopt.errors import UnsupportedModel, UsageError
from graphopt.ir.signature import text_of_type
from graphopt.ops import traits
from graphopt.opset import convert
from graphopt.opset.upgrade import REFERRING
from graphopt.passes.base import CHOSEN_OPSET, Pass
from graphopt.rewrite.builder import Builder
from graphopt.transforms.opset._lost_kernels import lost_kernels

#: Largest constant that is passed to the converter, in elements; the converter turns some into attributes.
_SHOWN = 4096
_GRAPH_TYPES = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
#: Values in place of a reference to a function's attribute during a conversion. The first is the stand-in;
#: the others test whether the conversion depends on the value: common values, and invalid axes.
_STAND_INS: dict[ir.AttributeType, tuple[object, ...]] = {
    ir.AttributeType.INT: (1, 0, -1, 100),
    ir.AttributeType.FLOAT: (0.8125, 0.0, 1.0),
    ir.AttributeType.INTS: ((1,), (0,), (-1,), (0, 1), (100,)),
    ir.AttributeType.FLOATS: ((0.8125,), (0.0,), (1.0, 2.0)),
    ir.AttributeType.STRING: ("graphopt", "other"),
}

#: By attribute, the stand-in and the reference that it stands for.
_References = dict[str, tuple[onnx.AttributeProto, ir.Attr]]


@dataclass(frozen=True)
class ConvertOpset(Pass):
    """Write the model for opset ``target`` of ai.onnx, such as ``convert-opset{target=21}``.

    Nodes of bodies and functions are converted in place. Most need no change; onnx's version converter
    converts the others one by one. The IR version is raised if the opset requires a newer one. Other
    domains are not changed.

    Attributes:
        target: the opset version.

    Raises:
        UnsupportedModel: a node can't be converted; the model is then unchanged.
        UsageError: the opset version does not exist.
    """

    name: ClassVar[str] = "convert-opset"
    does: ClassVar[str] = "converted"
    provides: ClassVar[frozenset[str]] = frozenset({CHOSEN_OPSET})
    required: ClassVar[bool] = True
    target: int = 0

    def __post_init__(self) -> None:
        if self.target == 0:
            raise UsageError("convert-opset needs a target", hint="such as convert-opset{target=21}")
        if not 1 <= self.target <= convert.NEWEST:
            raise UsageError(
                f"there is no opset {self.target}", hint=f"the installed onnx knows 1 to {convert.NEWEST}"
            )

    def run(self, model: ir.Model, cx: Context) -> None:
        """Convert all nodes, or raise before any change."""
        if ir.has_training_info(model):
            raise UnsupportedModel("the model has training info, whose graphs can't be converted")
        plans = [plan for graph in ir.graphs_of(model) for node in graph for plan in self._plans(node, cx)]
        known = model.graph.opset_imports
        source = ir.standard_version(known, self.target)
        imports = [model.graph.opset_imports, *(held.opset_imports for held in model.functions.values())]
        for found in imports:
            cx.edit.set_import(found, "", self.target)
        imported = [onnx.helper.make_opsetid("", self.target)]
        needed = onnx.helper.find_min_ir_version_for(imported, ignore_unknown=True)
        if needed > model.ir_version:
            cx.edit.raise_ir_version(needed)
        for plan in plans:
            plan.carry_out(cx)
        if source != self.target:
            cx.remarks.append(f"opset {source} → {self.target}")
            lost = lost_kernels(model, source, cx)
            if lost:
                runtime = f"onnxruntime {cx.target.version}"
                cx.remarks.append(f"{runtime} has no kernel for {', '.join(lost)} of opset {self.target}")

    def _plans(self, node: ir.Node, cx: Context) -> Iterator[_Plan]:
        if node.domain != "" or node.op_identifier() in cx.model.functions:
            return
        source = cx.version(node)
        if not convert.changes(node.op_type, source, self.target):
            return
        if node.op_type == "Constant" and self.target >= source:
            return
        try:
            plan = _planned_somehow(node, source, self.target, cx)
        except UnsupportedModel as error:
            function = cx.edit.scopes.function(node.graph) if node.graph is not None else None
            where = "" if function is None else f" in function {function.domain}::{function.name}"
            raise UnsupportedModel(
                f"the model can't be written for opset {self.target}: {error.message}"
                f" (node {ir.label(node)}{where})",
                hint="choose another --target-opset",
            ) from error
        if plan is not None:
            yield plan


@dataclass
class _Plan:
    """The conversion of one node.

    Attributes:
        node: the original node.
        made: its replacement, as protos; empty for a Constant that becomes an initializer.
        outputs: the names in ``made`` of the node's outputs.
        places: the indices of the node's inputs, by their names in ``made``.
        constants: new constants by name.
        references: by attribute, the stand-in and the reference that it stands for.
        dropped: indices of unused optional outputs that are removed.
    """

    node: ir.Node
    made: list[onnx.NodeProto]
    outputs: list[str]
    places: dict[str, int]
    constants: dict[str, onnx.TensorProto] = field(default_factory=dict)
    references: _References = field(default_factory=dict)
    dropped: Sequence[int] = ()

    def carry_out(self, cx: Context) -> None:
        """Update the node if it remains one node of the same operator; otherwise replace it."""
        for index in reversed(self.dropped):
            cx.edit.remove_node_output(self.node, index)
        builder = Builder(cx, self.node)
        # inputs of the node may have been replaced since the plan was made
        values = {name: self.node.inputs[index] for name, index in self.places.items()}
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
        cx.edit.note_origin(builder.commit(), [self.node], ConvertOpset.name)
        for old, name in zip(self.node.outputs, self.outputs, strict=True):
            if name and ir.is_read(old):
                was_output = old.is_graph_output()
                new = self._value(name, values, builder)
                assert new is not None
                cx.edit.replace(old, new)
                if not was_output:
                    cx.edit.take_over(new, old)
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


def _planned_somehow(node: ir.Node, source: int, target: int, cx: Context) -> _Plan | None:
    """The conversion of ``node``; unused outputs are removed if they prevent it."""
    try:
        return _planned(node, source, target, cx)
    except UnsupportedModel:
        unread = _unread_outputs(node, source)
        if not unread:
            raise
        return _planned(node, source, target, cx, unread)


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


def _planned(
    node: ir.Node, source: int, target: int, cx: Context, dropped: Sequence[int] = ()
) -> _Plan | None:
    """The conversion of ``node`` without the outputs ``dropped``; ``None`` if it needs no change."""
    if node.op_type == "Constant":
        return _spelt_out(node, source, target, cx)
    named: dict[ir.Value, str] = {}
    for value in node.inputs:
        if value is not None:
            named.setdefault(value, f"i{len(named)}")
    proto, references = _proto(node, named, dropped)
    types = {name: _type_text(value, cx) for value, name in named.items()}
    types.update((f"o{index}", _type_text(output, cx)) for index, output in enumerate(node.outputs))
    if convert.same_form(node.op_type, source, target):
        _check(proto, types, source, target)
        places = {name: node.inputs.index(value) for value, name in named.items()}
        return _Plan(node, [proto], list(proto.output), places, dropped=dropped) if dropped else None
    if any(attribute.type in _GRAPH_TYPES for attribute in node.attributes.values()):
        raise UnsupportedModel(f"{node.op_type} of opset {source} means something else there")
    result = convert.convert(_model(node, proto, named, source, cx), target)
    for name, tried, variant in _variants(node, proto, references, source, cx):
        try:
            other = convert.convert(_model(node, variant, named, source, cx), target)
        except UnsupportedModel:
            other = None
        if other is None or _with_other(other, None, None) != _with_other(result, references[name][0], tried):
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
    plan = _Plan(
        node,
        made,
        [output.name for output in result.graph.output],
        {name: node.inputs.index(value) for value, name in named.items()},
        constants,
        references,
        dropped,
    )
    _check_references(plan)
    _check_constants(plan, target, cx)
    return plan


def _check(proto: onnx.NodeProto, types: dict[str, str | None], source: int, target: int) -> None:
    found = convert.obstacle(proto, types, source, target)
    if found is not None:
        raise UnsupportedModel(found)


def _check_references(plan: _Plan) -> None:
    """Check that each reference to a function's attribute occurs exactly once in the result."""
    for name, (stand_in, _) in plan.references.items():
        found = [item for made in plan.made for item in made.attribute if item == stand_in]
        if len(found) != 1:
            raise UnsupportedModel(
                f"attribute {name!r} of {plan.node.op_type} is the function's, and changes"
            )


def _check_constants(plan: _Plan, target: int, cx: Context) -> None:
    """Check that a function that contains the node supports the types of new constants."""
    graph = plan.node.graph
    for name in [name for made in plan.made for name in made.input if name not in plan.places]:
        tensor = plan.constants.get(name)
        dtype = None if tensor is None else ir.DataType(tensor.data_type)
        if graph is not None and dtype and not cx.edit.supports_constant(graph, dtype, target):
            type_ = dtype.name.lower()
            raise UnsupportedModel(
                f"opset {target} lacks the {type_} constant that {plan.node.op_type} needs"
            )


def _spelt_out(node: ir.Node, source: int, target: int, cx: Context) -> _Plan | None:
    """A Constant with the attribute ``value``, for opsets that lack its other attributes."""
    bare = onnx.NodeProto(op_type=node.op_type, output=["o0"])
    misfit = convert.obstacle(bare, {"o0": _type_text(node.outputs[0], cx)}, source, target)
    tensor = ir.constant_of(node.outputs[0])
    if misfit is not None:
        if node.graph is None or cx.edit.scopes.function(node.graph) is not None or tensor is None:
            raise UnsupportedModel(misfit)
        return _Plan(node, [], ["o0"], {}, {"o0": ir.serialize_tensor(tensor)})  # it becomes an initializer
    if target >= 12 or "value" in node.attributes:
        return None
    if tensor is None:
        raise UnsupportedModel(f"opset {target} has no such Constant")
    made = onnx.NodeProto(op_type="Constant", output=["o0"])
    made.attribute.add(name="value", type=onnx.AttributeProto.TENSOR).t.CopyFrom(ir.serialize_tensor(tensor))
    return _Plan(node, [made], ["o0"], {})


def _proto(
    node: ir.Node, named: dict[ir.Value, str], dropped: Sequence[int] = ()
) -> tuple[onnx.NodeProto, _References]:
    """The node without the outputs ``dropped``, and the stand-ins for references to attributes."""
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
        if attribute.type in _GRAPH_TYPES:
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


def _variants(
    node: ir.Node,
    proto: onnx.NodeProto,
    references: _References,
    source: int,
    cx: Context,
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
        told = None if function is None else function.attributes.get(reference.ref_attr_name or "")
        if (told is None or told.value is None) and (known is None or not known.required):
            tried.append(None)
        for attribute in tried:
            variant = onnx.NodeProto()
            variant.CopyFrom(proto)
            place = [item.name for item in proto.attribute].index(name)
            if attribute is None:
                del variant.attribute[place]
            else:
                variant.attribute[place].CopyFrom(attribute)
            yield name, attribute, variant


def _with_other(
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


def _model(
    node: ir.Node, proto: onnx.NodeProto, named: dict[ir.Value, str], source: int, cx: Context
) -> onnx.ModelProto:
    """A model with only this node; its operands are inputs, or initializers for small constants."""
    model = onnx.ModelProto(ir_version=10)
    model.opset_import.add(domain="", version=source)
    model.graph.name = "node"
    model.graph.node.append(proto)
    dims: dict[str, str] = {}
    for value, name in named.items():
        tensor = ir.constant_of(value)
        if tensor is not None and tensor.size <= _SHOWN:
            ir.read(value)
            model.graph.initializer.append(ir.serialize_tensor(tensor))
            model.graph.initializer[-1].name = name
        else:
            _declare(model.graph.input.add(name=name), value, dims, cx)
    for name, value in zip(proto.output, node.outputs, strict=False):
        _declare(model.graph.output.add(name=name), value, dims, cx)
    return model


def _declare(info: onnx.ValueInfoProto, value: ir.Value, dims: dict[str, str], cx: Context) -> None:
    """Declare the known type and shape of ``value``; dims are renumbered: equal nodes give equal models."""
    dtype, shape = cx.dtype(value), cx.shape(value)
    tensor = info.type.tensor_type
    tensor.elem_type = 0 if dtype is None else int(dtype)
    if shape is not None:
        tensor.shape.SetInParent()
        for dim in shape:
            if isinstance(dim, int):
                tensor.shape.dim.add(dim_value=dim)
            else:
                tensor.shape.dim.add(dim_param=dims.setdefault(str(dim), f"d{len(dims)}"))


def _type_text(value: ir.Value, cx: Context) -> str | None:
    """The type in the notation of schemas; ``None`` if it is unknown."""
    found = cx.facts.type(value) or value.type
    is_known = found is not None and found.dtype != ir.DataType.UNDEFINED
    return text_of_type(found) if found is not None and is_known else None
