"""onnx's own shape inference for one node, with symbolic dims passed through as names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

from graphopt import ir
from graphopt.analysis.shape_inference.facts import UNKNOWN, Fact
from graphopt.analysis.symbolic import Dim
from graphopt.ops.contrib import result_types

if TYPE_CHECKING:
    import onnx

    from graphopt.analysis.shape_inference.node import NodeFacts

#: Operators whose floating-point inputs decide a shape.
_SHAPED_BY_FLOATS = frozenset({"Range", "Resize", "Upsample"})
_DATA_LIMIT = 1024  # constants of more elements never tell a shape


def infer(given: NodeFacts) -> list[Fact] | None:
    """The facts of the node's outputs as onnx's schema of the operator tells them.

    Returns None where onnx has no schema, the node holds graphs, or inference fails.
    """
    node = given.node
    schema = ir.operator_schema(node.domain, node.op_type, given.version)
    if schema is None or not schema.has_type_and_shape_inference_function:
        return None
    proto = _node_proto(given)
    if proto is None:
        return None
    names: dict[Dim, str] = {}
    facts = _ask(given, schema, proto, lambda dim: names.setdefault(dim, f"s{len(names)}"))
    if facts is None or not names or not any(map(_has_number, facts)):
        return facts
    # Some operators' inference takes a symbol for the number 0 and computes with it. A number
    # counts only if it comes out whatever the symbols stand for.
    trials = [_ask(given, schema, proto, _sizes(names, step)) for step in (4, 0)]
    confirmed = [trial for trial in trials if trial is not None]
    return [_checked(given, fact, [trial[index] for trial in confirmed]) for index, fact in enumerate(facts)]


def _sizes(dims: Iterable[Dim], step: int) -> Callable[[Dim], int]:
    """A size for each of ``dims``: different ones, or with ``step`` 0 all the same."""
    sizes = {dim: 96 + step * place for place, dim in enumerate(dims)}
    return sizes.__getitem__


def _has_number(fact: Fact) -> bool:
    if fact.element is not None:
        return _has_number(fact.element)
    return any(isinstance(dim, int) for dim in fact.shape or ())


def _checked(given: NodeFacts, fact: Fact, trials: list[Fact]) -> Fact:
    """``fact`` without numbers that a trial does not confirm."""
    if fact.element is not None:
        inner = [trial.element or UNKNOWN for trial in trials]
        return Fact(container=fact.container, element=_checked(given, fact.element, inner))
    if fact.shape is None:
        return fact
    dims: list[Dim] = []
    for place, dim in enumerate(fact.shape):
        others = [trial.shape[place] for trial in trials if trial.shape and len(trial.shape) > place]
        sure = not isinstance(dim, int) or (others and all(other == dim for other in others))
        dims.append(dim if sure else given.fresh())
    return Fact(fact.dtype, tuple(dims))


def _node_proto(given: NodeFacts) -> onnx.NodeProto | None:
    """The node with its inputs called i0, i1 and so on, its outputs o0, o1; None if it holds graphs."""
    import onnx

    node = given.node
    proto = onnx.NodeProto(op_type=node.op_type, domain=node.domain)
    for name in node.attributes:
        attribute = given.attr(name)
        if attribute is None:
            continue
        if attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
            return None
        proto.attribute.append(ir.serialize_attribute(attribute))
        proto.attribute[-1].name = name
    proto.input.extend(f"i{index}" if given.has(index) else "" for index in range(len(node.inputs)))
    proto.output.extend(f"o{index}" for index in range(len(node.outputs)))
    return proto


def _ask(
    given: NodeFacts,
    schema: onnx.defs.OpSchema,
    proto: onnx.NodeProto,
    stand_in: Callable[[Dim], str | int],
) -> list[Fact] | None:
    """onnx's answer, with each symbolic dim given as a name or a size that stands in for it."""
    from onnx import checker, helper, shape_inference

    names: dict[str, Dim] = {}

    def named(dim: Dim) -> str | int:
        result = stand_in(dim)
        if isinstance(result, str):
            names[result] = dim
        return result

    types: dict[str, onnx.TypeProto] = {}
    data: dict[str, onnx.TensorProto] = {}
    for index, name in enumerate(proto.input):
        if name:
            types[name] = _to_proto(given.fact(index), named)
            tensor = _data(given, index)
            if tensor is not None:
                data[name] = tensor
    imports = [helper.make_opsetid(given.node.domain, given.version)]
    try:
        found = shape_inference.infer_node_outputs(schema, proto, types, data, opset_imports=imports)
    except (shape_inference.InferenceError, checker.ValidationError, RuntimeError, ValueError, IndexError):
        return None
    return [_from_proto(given, found.get(name), names) for name in proto.output]


def _data(given: NodeFacts, index: int) -> onnx.TensorProto | None:
    import onnx

    contents, dtype, dims = given.static_contents(index), given.dtype(index), ir.all_ints(given.shape(index))
    if contents is not None and dtype is not None and dims is not None:
        return onnx.helper.make_tensor("", int(dtype), dims, contents)
    tensor = given.constant(index)
    if tensor is None or tensor.size > _DATA_LIMIT:
        return None
    if not tensor.dtype.is_floating_point() or given.node.op_type in _SHAPED_BY_FLOATS:
        given.rely_on(index)
    return ir.serialize_tensor(tensor)


def _to_proto(fact: Fact, stand_in: Callable[[Dim], str | int]) -> onnx.TypeProto:
    import onnx

    proto = onnx.TypeProto()
    if fact.container is not None:
        element = _to_proto(fact.element or UNKNOWN, stand_in)
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
                given = dim if isinstance(dim, int) else stand_in(dim)
                if isinstance(given, int):
                    dims.add().dim_value = given
                else:
                    dims.add().dim_param = given
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


# Contrib operators


def with_vendor_types(given: NodeFacts, found: Fact | Iterable[Fact] | None) -> list[Fact]:
    """The facts of a node's outputs that a shape rule found, with element types where they lack."""
    facts = [found] if isinstance(found, Fact) else list(found or ())
    pairs = zip_longest(facts, result_types(given.node.op_type))
    return [_typed(given, fact or UNKNOWN, type_) for fact, type_ in pairs]


def _typed(given: NodeFacts, fact: Fact, type_: str | tuple[int, ...] | None) -> Fact:
    if fact.dtype is not None or fact.container is not None or not type_:
        return fact
    if isinstance(type_, str):
        return Fact(getattr(ir.DataType, type_.upper()), fact.shape)
    known = (given.dtype(index) for index in type_)
    return Fact(next((dtype for dtype in known if dtype is not None), None), fact.shape)
