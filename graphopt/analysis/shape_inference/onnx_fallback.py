"""Facts of nodes without a shape rule: onnx's inference, and the signatures of contrib operators."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

from graphopt import ir
from graphopt.analysis.shape_inference.node_facts import NodeFacts
from graphopt.analysis.shape_inference.value_facts import UNKNOWN, Fact
from graphopt.analysis.symbolic import Dim
from graphopt.ops.contrib import result_types

if TYPE_CHECKING:
    import onnx

#: Operators whose floating-point inputs determine a shape.
_SHAPED_BY_FLOATS = frozenset({"Range", "Resize", "Upsample"})
#: Maximum number of elements of a constant passed to onnx. Larger constants never determine a shape.
_DATA_LIMIT = 1024


def infer_with_onnx(node: NodeFacts) -> list[Fact] | None:
    """The facts of the node's outputs, inferred by onnx's schema of the operator.

    Symbolic dims are passed as names. Returns ``None`` if onnx has no inference for the operator, the node
    has bodies, or inference fails.
    """
    schema = ir.operator_schema(node.ir.domain, node.ir.op_type, node.version)
    if schema is None or not schema.has_type_and_shape_inference_function:
        return None
    proto = _node_proto(node)
    if proto is None:
        return None
    names: dict[Dim, str] = {}
    facts = _infer_with_stand_ins(node, schema, proto, lambda dim: names.setdefault(dim, f"s{len(names)}"))
    if facts is None or not names or not any(map(_has_number, facts)):
        return facts
    # The inference of some operators replaces a symbol by 0. A number is accepted only if it
    # does not depend on the values of the symbols.
    trials = [_infer_with_stand_ins(node, schema, proto, _sizes(names, step)) for step in (4, 0)]
    confirmed = [trial for trial in trials if trial is not None]
    return [
        _without_disagreement(node, fact, [trial[index] for trial in confirmed])
        for index, fact in enumerate(facts)
    ]


def _sizes(dims: Iterable[Dim], step: int) -> Callable[[Dim], int]:
    """Sizes for ``dims``: all different, or all equal if ``step`` is 0."""
    sizes = {dim: 96 + step * place for place, dim in enumerate(dims)}
    return sizes.__getitem__


def _has_number(fact: Fact) -> bool:
    if fact.element is not None:
        return _has_number(fact.element)
    return any(isinstance(dim, int) for dim in fact.shape or ())


def _without_disagreement(node: NodeFacts, fact: Fact, trials: list[Fact]) -> Fact:
    """``fact`` without the numbers that differ between trials."""
    if fact.element is not None:
        inner = [trial.element or UNKNOWN for trial in trials]
        return Fact(container=fact.container, element=_without_disagreement(node, fact.element, inner))
    if fact.shape is None:
        return fact
    dims: list[Dim] = []
    for place, dim in enumerate(fact.shape):
        others = [trial.shape[place] for trial in trials if trial.shape and len(trial.shape) > place]
        is_certain = not isinstance(dim, int) or (others and all(other == dim for other in others))
        dims.append(dim if is_certain else node.fresh())
    return Fact(fact.dtype, tuple(dims))


def _node_proto(node: NodeFacts) -> onnx.NodeProto | None:
    """The node with inputs named i0, i1, …, and outputs o0, o1, …; ``None`` if it has bodies."""
    import onnx

    proto = onnx.NodeProto(op_type=node.ir.op_type, domain=node.ir.domain)
    for name in node.ir.attributes:
        attribute = node.attr(name)
        if attribute is None:
            continue
        if attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
            return None
        proto.attribute.append(ir.serialize_attribute(attribute))
        proto.attribute[-1].name = name
    proto.input.extend(f"i{index}" if node.has(index) else "" for index in range(len(node.ir.inputs)))
    proto.output.extend(f"o{index}" for index in range(len(node.ir.outputs)))
    return proto


def _infer_with_stand_ins(
    node: NodeFacts,
    schema: onnx.defs.OpSchema,
    proto: onnx.NodeProto,
    stand_in: Callable[[Dim], str | int],
) -> list[Fact] | None:
    """onnx's inference, with a name or a size in place of each symbolic dim."""
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
            types[name] = _to_proto(node.fact(index), named)
            tensor = _data(node, index)
            if tensor is not None:
                data[name] = tensor
    imports = [helper.make_opsetid(node.ir.domain, node.version)]
    try:
        found = shape_inference.infer_node_outputs(schema, proto, types, data, opset_imports=imports)
    except (shape_inference.InferenceError, checker.ValidationError, RuntimeError, ValueError, IndexError):
        return None
    return [_from_proto(node, found.get(name), names) for name in proto.output]


def _data(node: NodeFacts, index: int) -> onnx.TensorProto | None:
    import onnx

    contents, dtype, dims = node.static_contents(index), node.dtype(index), ir.all_ints(node.shape(index))
    if contents is not None and dtype is not None and dims is not None:
        return onnx.helper.make_tensor("", int(dtype), dims, contents)
    tensor = node.constant(index)
    if tensor is None or tensor.size > _DATA_LIMIT:
        return None
    if not tensor.dtype.is_floating_point() or node.ir.op_type in _SHAPED_BY_FLOATS:
        node.rely_on(index)
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
                size = dim if isinstance(dim, int) else stand_in(dim)
                if isinstance(size, int):
                    dims.add().dim_value = size
                else:
                    dims.add().dim_param = size
    return proto


def _from_proto(node: NodeFacts, proto: onnx.TypeProto | None, names: dict[str, Dim]) -> Fact:
    if proto is None:
        return UNKNOWN
    match proto.WhichOneof("value"):
        case "tensor_type":
            return _tensor_fact(node, proto.tensor_type, names)
        case "sequence_type":
            element = _from_proto(node, proto.sequence_type.elem_type, names)
            return Fact(container=ir.SequenceType, element=element)
        case "optional_type":
            element = _from_proto(node, proto.optional_type.elem_type, names)
            return Fact(container=ir.OptionalType, element=element)
    return UNKNOWN


def _tensor_fact(node: NodeFacts, proto: onnx.TypeProto.Tensor, names: dict[str, Dim]) -> Fact:
    dtype = ir.DataType(proto.elem_type) if proto.elem_type else None
    if not proto.HasField("shape"):
        return Fact(dtype)
    return Fact(dtype, tuple(_dims(node, proto.shape.dim, names)))


def _dims(
    node: NodeFacts, protos: Sequence[onnx.TensorShapeProto.Dimension], names: dict[str, Dim]
) -> list[Dim]:
    dims: list[Dim] = []
    for proto in protos:
        if proto.HasField("dim_value") and proto.dim_value >= 0:
            dims.append(proto.dim_value)
        else:
            dim = names.get(proto.dim_param) if proto.dim_param else None
            dims.append(node.fresh() if dim is None else dim)
    return dims


# Contrib operators


def with_contrib_types(node: NodeFacts, found: Fact | Iterable[Fact] | None) -> list[Fact]:
    """The facts that a shape rule returned, with missing element types added."""
    facts = [found] if isinstance(found, Fact) else list(found or ())
    pairs = zip_longest(facts, result_types(node.ir.op_type))
    return [_with_declared_type(node, fact or UNKNOWN, type_) for fact, type_ in pairs]


def _with_declared_type(node: NodeFacts, fact: Fact, type_: str | tuple[int, ...] | None) -> Fact:
    if fact.dtype is not None or fact.container is not None or not type_:
        return fact
    if isinstance(type_, str):
        return Fact(getattr(ir.DataType, type_.upper()), fact.shape)
    known = (node.dtype(index) for index in type_)
    return Fact(next((dtype for dtype in known if dtype is not None), None), fact.shape)
