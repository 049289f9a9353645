"""Preserve parts of a model that onnx-ir rejects or drops, as opaque data.

onnx-ir has no map types, no sparse tensors and no training info, decodes every string attribute as UTF-8,
drops the declared types of function inputs and the order of ``value_info``, and writes a ``value_info`` for
each initializer. Before onnx-ir reads a proto, :func:`pack` encodes such parts as data that onnx-ir
preserves: metadata properties of values, nodes and graphs, and attributes with byte strings. :func:`attach`
stores the rest beside the model. :func:`unpack` restores everything in the proto that onnx-ir writes, and
strips graphopt's private namespace.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Any

import onnx

from graphopt.ir._onnx_ir_without_sympy import onnx_ir
from graphopt.ir.constants import NAMESPACE, UPDATED_OUTSIDE
from graphopt.ir.folded_initializers import FOLDED, load_record, written_record
from graphopt.ir.io import serialization_details
from graphopt.ir.name_references import note_names, remove_invalid_annotations
from graphopt.ir.opaque_parts import PACKED, TRAINING_INFO, TYPE

_DECLARED = NAMESPACE + "declared"
_SPARSE_INITIALIZER = NAMESPACE + "sparse_initializer"
_SPARSE_DEFAULT = NAMESPACE + "sparse_default"
_HEADER = NAMESPACE + "header"

_Attribute = onnx.AttributeProto
_KNOWN_TYPES = frozenset(int(dtype) for dtype in onnx_ir.DataType)
#: Types of attributes that are never packed.
_NUMBERS = frozenset({_Attribute.INT, _Attribute.INTS, _Attribute.FLOAT, _Attribute.FLOATS})


def pack(proto: onnx.ModelProto) -> None:
    """Encode the parts that onnx-ir can't represent, in place.

    Entries in graphopt's private namespace are removed first, because passes use such entries without checks.
    """
    _strip(proto.metadata_props)
    _pack_graph(proto.graph)
    for function in proto.functions:
        _strip(function.metadata_props)
        for info in function.value_info:
            _strip(info.metadata_props)
        serialization_details.note_order(function)
        _pack_infos(function.value_info, frozenset())
        _pack_nodes(function.node)
        for attribute in function.attribute_proto:
            _pack_attribute(attribute)


def attach(proto: onnx.ModelProto, model: onnx_ir.Model) -> None:
    """Store the parts of the packed ``proto`` that ``model``, which was created from it, lacks.

    They are stored with the main graph, so that clones of the model have them. Initializers that training
    info updates are not constant.
    """
    meta = model.graph.meta
    meta[_HEADER] = serialization_details.header_of(proto)
    if proto.training_info:
        meta[TRAINING_INFO] = [info.SerializeToString() for info in proto.training_info]
        meta[UPDATED_OUTSIDE] = frozenset(
            binding.key
            for info in proto.training_info
            for binding in (*info.initialization_binding, *info.update_binding)
        )
    load_record(model)
    note_names(proto, model)
    for function, target in zip(proto.functions, model.functions.values(), strict=True):
        infos = {info.name: info for info in function.value_info}
        for value in target.inputs if infos else ():
            if value.name in infos:
                onnx_ir.serde.deserialize_value_info_proto(infos[value.name], value)


def unpack(proto: onnx.ModelProto, model: onnx_ir.Model) -> None:
    """Undo :func:`pack` in the proto that onnx-ir wrote, in place."""
    for data in model.graph.meta.get(TRAINING_INFO, ()):
        proto.training_info.add().ParseFromString(data)
    _strip(proto.metadata_props)
    record = written_record(model)
    if record is not None:
        proto.metadata_props.add(key=FOLDED, value=record)
    serialization_details.restore_header(proto, model.graph.meta.get(_HEADER))
    _drop_infos_of_functions(proto)
    _unpack_graph(proto.graph)
    for function in proto.functions:
        serialization_details.restore_order(function)
        function.domain = function.domain  # onnx's checker requires the field even if it is empty
        _strip(function.metadata_props)
        _unpack_infos(function.value_info)
        _drop_bare_infos(function)
        _unpack_nodes(function.node)
        for attribute in function.attribute_proto:
            _unpack_attribute(attribute)


def _pack_graph(graph: onnx.GraphProto) -> None:
    names = frozenset(tensor.name for tensor in graph.initializer)
    _strip(graph.metadata_props)
    for tensor in graph.initializer:
        _strip(tensor.metadata_props)
    for info in (*graph.input, *graph.output, *graph.value_info):
        _strip(info.metadata_props)
    serialization_details.note_order(graph)
    serialization_details.note_outputs(graph)
    _pack_infos(graph.input, frozenset())
    _pack_infos(graph.output, frozenset())
    _pack_infos(graph.value_info, names)
    _pack_nodes(graph.node)
    if graph.sparse_initializer:
        _pack_sparse_initializers(graph)


def _pack_sparse_initializers(graph: onnx.GraphProto) -> None:
    """Encode sparse initializers as Constant nodes at the start of their graph, and defaults at the input."""
    constants = []
    inputs = {info.name: info for info in graph.input}
    for sparse in graph.sparse_initializer:
        if sparse.values.name in inputs:
            packed = base64.b64encode(sparse.SerializeToString()).decode()
            inputs[sparse.values.name].metadata_props.add(key=_SPARSE_DEFAULT, value=packed)
            continue
        node = onnx.NodeProto(op_type="Constant", output=[sparse.values.name])
        node.attribute.add(name="sparse_value", type=_Attribute.SPARSE_TENSOR).sparse_tensor.CopyFrom(sparse)
        node.metadata_props.add(key=_SPARSE_INITIALIZER, value="1")
        _pack_attribute(node.attribute[0])
        constants.append(node)
    rest = list(graph.node)
    del graph.node[:], graph.sparse_initializer[:]
    graph.node.extend([*constants, *rest])


def _pack_infos(infos: Iterable[onnx.ValueInfoProto], initializers: frozenset[str]) -> None:
    for info in infos:
        if info.name in initializers:
            info.metadata_props.add(key=_DECLARED, value="1")
        if info.HasField("type") and not _is_supported(info.type):
            packed = base64.b64encode(info.type.SerializeToString()).decode()
            info.metadata_props.add(key=TYPE, value=packed)
            info.ClearField("type")


def _is_supported(type_: onnx.TypeProto) -> bool:
    """Whether onnx-ir can represent ``type_`` exactly."""
    while True:
        match type_.WhichOneof("value"):
            case "tensor_type":
                return type_.tensor_type.elem_type in _KNOWN_TYPES
            case "sparse_tensor_type":
                return type_.sparse_tensor_type.elem_type in _KNOWN_TYPES
            case "sequence_type" | "optional_type" as kind:
                inner = getattr(type_, kind)
                if not inner.HasField("elem_type"):
                    return False
                type_ = inner.elem_type
            case _:
                return False


def _pack_nodes(nodes: Iterable[onnx.NodeProto]) -> None:
    for node in nodes:
        _strip(node.metadata_props)
        for attribute in node.attribute:
            if attribute.type not in _NUMBERS:
                _pack_attribute(attribute)


def _pack_attribute(attribute: onnx.AttributeProto) -> None:
    if attribute.ref_attr_name:
        return
    match attribute.type:
        case _Attribute.GRAPH:
            _pack_graph(attribute.g)
            return
        case _Attribute.GRAPHS:
            for graph in attribute.graphs:
                _pack_graph(graph)
            return
        case _Attribute.SPARSE_TENSOR | _Attribute.SPARSE_TENSORS:
            pass
        case _Attribute.TENSOR:
            _strip(attribute.t.metadata_props)
            return
        case _Attribute.TYPE_PROTO:
            if _is_supported(attribute.tp):
                return
        case _Attribute.TYPE_PROTOS:
            if all(_is_supported(type_) for type_ in attribute.type_protos):
                return
        case _Attribute.STRING:
            if not attribute.s.startswith(PACKED):
                return
        case _Attribute.STRINGS:
            if all(map(_is_utf8, attribute.strings)):
                return
        case _:
            return
    name, packed = attribute.name, PACKED + attribute.SerializeToString()
    attribute.Clear()
    attribute.name, attribute.type, attribute.s = name, _Attribute.STRING, packed


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _unpack_graph(graph: onnx.GraphProto, outer: tuple[onnx.GraphProto, ...] = ()) -> None:
    for info in graph.input:
        default = serialization_details.entry(info.metadata_props, _SPARSE_DEFAULT)
        if default is not None:
            graph.sparse_initializer.add().ParseFromString(base64.b64decode(default))
            graph.sparse_initializer[-1].values.name = info.name
    _unpack_infos(graph.input)
    _unpack_infos(graph.output)
    serialization_details.restore_outputs(graph)
    _drop_infos_of_initializers(graph)
    serialization_details.restore_order(graph)
    _unpack_infos(graph.value_info)
    _strip(graph.metadata_props)
    for tensor in graph.initializer:
        _unpack_tensor(tensor)
    remove_invalid_annotations(graph, outer)
    for node in _unpack_nodes(graph.node, (*outer, graph)):
        graph.sparse_initializer.add().CopyFrom(node.attribute[0].sparse_tensor)
        graph.sparse_initializer[-1].values.name = node.output[0]
        graph.node.remove(node)


def _is_sparse_initializer(node: onnx.NodeProto) -> bool:
    return any(entry.key == _SPARSE_INITIALIZER for entry in node.metadata_props)


def _drop_infos_of_initializers(graph: onnx.GraphProto) -> None:
    names = frozenset(tensor.name for tensor in graph.initializer)
    kept = [
        info
        for info in graph.value_info
        if info.name not in names or any(entry.key == _DECLARED for entry in info.metadata_props)
    ]
    if len(kept) != len(graph.value_info):
        del graph.value_info[:]
        graph.value_info.extend(kept)


def _drop_infos_of_functions(proto: onnx.ModelProto) -> None:
    """Remove the ``value_info`` of functions' values that onnx-ir adds to the main graph.

    Below IR version 10 functions have no ``value_info``; onnx-ir then writes names
    ``domain::function/value``, which only onnx-ir interprets.
    """
    if proto.ir_version >= 10 or not proto.functions:
        return
    before = serialization_details.noted_order(proto.graph)
    functions = tuple(f"{function.domain}::{function.name}/" for function in proto.functions)
    own = frozenset(name for node in proto.graph.node for name in node.output)
    kept = [
        info
        for info in proto.graph.value_info
        if info.name in before or info.name in own or not info.name.startswith(functions)
    ]
    if len(kept) != len(proto.graph.value_info):
        del proto.graph.value_info[:]
        proto.graph.value_info.extend(kept)


def _unpack_infos(infos: Iterable[onnx.ValueInfoProto]) -> None:
    for info in infos:
        if not info.metadata_props:
            continue
        for entry in info.metadata_props:
            if entry.key == TYPE:
                info.type.ParseFromString(base64.b64decode(entry.value))
        _strip(info.metadata_props)


def _drop_bare_infos(function: onnx.FunctionProto) -> None:
    """Remove entries without a type, which onnx-ir writes for values of unknown type."""
    kept = [info for info in function.value_info if info.HasField("type") or info.doc_string]
    if len(kept) != len(function.value_info):
        del function.value_info[:]
        function.value_info.extend(kept)


def _unpack_nodes(
    nodes: Iterable[onnx.NodeProto], outer: tuple[onnx.GraphProto, ...] = ()
) -> list[onnx.NodeProto]:
    """Unpack the attributes of ``nodes``; returns the nodes that encode sparse initializers.

    Args:
        nodes: nodes of one graph.
        outer: the enclosing graphs; bodies of ``nodes`` may refer to their values.
    """
    sparse = []
    for node in nodes:
        for attribute in node.attribute:
            _unpack_attribute(attribute, outer)
        if node.metadata_props:
            if _is_sparse_initializer(node):
                sparse.append(node)
            _strip(node.metadata_props)
    return sparse


def _unpack_attribute(attribute: onnx.AttributeProto, outer: tuple[onnx.GraphProto, ...] = ()) -> None:
    if attribute.type == _Attribute.GRAPH:
        _unpack_graph(attribute.g, outer)
    elif attribute.type == _Attribute.GRAPHS:
        for graph in attribute.graphs:
            _unpack_graph(graph, outer)
    elif attribute.type == _Attribute.TENSOR:
        _unpack_tensor(attribute.t)
    elif attribute.type == _Attribute.STRING and attribute.s.startswith(PACKED):
        packed = attribute.s[len(PACKED) :]
        attribute.Clear()
        attribute.ParseFromString(packed)


def _unpack_tensor(tensor: onnx.TensorProto) -> None:
    """Remove duplicate metadata: onnx-ir writes the metadata of a tensor twice."""
    if len(tensor.metadata_props) > 1:
        entries = {entry.key: entry.value for entry in tensor.metadata_props}
        del tensor.metadata_props[:]
        for key, value in entries.items():
            tensor.metadata_props.add(key=key, value=value)


def _strip(entries: Any) -> None:
    """Remove graphopt's own entries from a repeated field of metadata properties."""
    private = [entry for entry in entries if str(entry.key).startswith(NAMESPACE)] if entries else []
    for entry in private:
        entries.remove(entry)
