"""onnx's own shape inference for one node, with symbolic dims passed through as names."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from graphopt import ir
from graphopt.analysis.dims import Dim
from graphopt.analysis.facts import UNKNOWN, Fact, all_ints
from graphopt.ir.onnxir import onnx_ir

if TYPE_CHECKING:
    import onnx

    from graphopt.analysis.node_facts import NodeFacts

_DATA_LIMIT = 1024  # constants of more elements never tell a shape


def infer(given: NodeFacts) -> list[Fact] | None:
    """The facts of the node's outputs as onnx's schema of the operator tells them.

    Returns None where onnx has no schema, the node holds graphs, or inference fails.
    """
    import onnx
    from onnx import shape_inference

    node = given.node
    schema = _schema(node.domain, node.op_type, given.version)
    if schema is None or not schema.has_type_and_shape_inference_function:
        return None
    proto = onnx.NodeProto(op_type=node.op_type, domain=node.domain)
    for name in node.attributes:
        attribute = given.attr(name)
        if attribute is None:
            continue
        if attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
            return None
        proto.attribute.append(onnx_ir.serde.serialize_attribute(attribute))
        proto.attribute[-1].name = name
    types: dict[str, onnx.TypeProto] = {}
    data: dict[str, onnx.TensorProto] = {}
    tokens: dict[Dim, str] = {}
    for index in range(len(node.inputs)):
        if not given.has(index):
            proto.input.append("")
            continue
        name = f"i{index}"
        proto.input.append(name)
        types[name] = _to_proto(given.fact(index), tokens)
        tensor = _data(given, index)
        if tensor is not None:
            data[name] = tensor
    proto.output.extend(f"o{index}" for index in range(len(node.outputs)))
    imports = [onnx.helper.make_opsetid(node.domain, given.version)]
    try:
        found = shape_inference.infer_node_outputs(schema, proto, types, data, opset_imports=imports)
    except (shape_inference.InferenceError, RuntimeError, ValueError):
        return None
    names = {token: dim for dim, token in tokens.items()}
    return [_from_proto(given, found.get(name), names) for name in proto.output]


@lru_cache(maxsize=1024)
def _schema(domain: str, op_type: str, version: int) -> onnx.defs.OpSchema | None:
    import onnx

    try:
        return onnx.defs.get_schema(op_type, version, domain)
    except onnx.defs.SchemaError:
        return None


def _data(given: NodeFacts, index: int) -> onnx.TensorProto | None:
    import onnx

    contents, dtype, dims = given.static_contents(index), given.dtype(index), all_ints(given.shape(index))
    if contents is not None and dtype is not None and dims is not None:
        return onnx.helper.make_tensor("", int(dtype), dims, contents)
    tensor = given.constant(index)
    if tensor is None or tensor.size > _DATA_LIMIT:
        return None
    return onnx_ir.serde.serialize_tensor(tensor)


def _to_proto(fact: Fact, tokens: dict[Dim, str]) -> onnx.TypeProto:
    import onnx

    proto = onnx.TypeProto()
    if fact.container is not None:
        element = _to_proto(fact.element or UNKNOWN, tokens)
        if fact.container is ir.SequenceType:
            proto.sequence_type.elem_type.CopyFrom(element)
        else:
            proto.optional_type.elem_type.CopyFrom(element)
    elif fact.dtype is not None:
        proto.tensor_type.elem_type = int(fact.dtype)
        if fact.shape is not None:
            dims = proto.tensor_type.shape.dim
            proto.tensor_type.shape.SetInParent()
            for dim in fact.shape:
                if isinstance(dim, int):
                    dims.add().dim_value = dim
                else:
                    dims.add().dim_param = tokens.setdefault(dim, f"s{len(tokens)}")
    return proto


def _from_proto(given: NodeFacts, proto: onnx.TypeProto | None, names: dict[str, Dim]) -> Fact:
    if proto is None:
        return UNKNOWN
    match proto.WhichOneof("value"):
        case "tensor_type":
            return _tensor_fact(given, proto.tensor_type, names)
        case "sequence_type":
            element = _from_proto(given, proto.sequence_type.elem_type, names)
            return Fact(container=ir.SequenceType, element=element)
        case "optional_type":
            element = _from_proto(given, proto.optional_type.elem_type, names)
            return Fact(container=ir.OptionalType, element=element)
    return UNKNOWN


def _tensor_fact(given: NodeFacts, proto: onnx.TypeProto.Tensor, names: dict[str, Dim]) -> Fact:
    dtype = ir.DataType(proto.elem_type) if proto.elem_type else None
    if not proto.HasField("shape"):
        return Fact(dtype)
    return Fact(dtype, tuple(_dims(given, proto.shape.dim, names)))


def _dims(
    given: NodeFacts, protos: Sequence[onnx.TensorShapeProto.Dimension], names: dict[str, Dim]
) -> list[Dim]:
    dims: list[Dim] = []
    for proto in protos:
        if proto.HasField("dim_value") and proto.dim_value >= 0:
            dims.append(proto.dim_value)
        else:
            dim = names.get(proto.dim_param) if proto.dim_param else None
            dims.append(given.fresh() if dim is None else dim)
    return dims
