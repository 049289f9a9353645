"""The objects of the JSON IR: the field of onnx.proto for each key."""

from __future__ import annotations

from typing import Any

import onnx
from google.protobuf import json_format  # type: ignore[import-untyped]

from graphopt.ir.json.errors import Fault, expect, expect_int, nearest, quoted
from graphopt.ir.json.field_tables import (
    DUPLICATE,
    INTEGER,
    INTEGERS,
    METADATA,
    TEXT,
    TEXTS,
    Custom,
    Entries,
    Key,
    Table,
    each,
)
from graphopt.ir.json.tensors import (
    read_bytes,
    read_contents,
    read_float,
    write_bytes,
    write_contents,
    write_float,
)
from graphopt.ir.json.type_text import read_tensor_type, read_type, write_tensor_type, write_type

_Attribute = onnx.AttributeProto


def of(table: Table, *, repeated: bool = False) -> Custom:
    """A message, or several, as objects of ``table``."""
    return Custom(table.write, table.read, repeated)


# Rare, small parts have protobuf's own JSON form -------------------------------


def _write_plain(message: Any, limit: int) -> Any:
    return json_format.MessageToDict(message, preserving_proto_field_name=True)


def _read_plain(item: Any, message: Any) -> None:
    try:
        json_format.ParseDict(expect(item, dict, "an object"), message)
    except json_format.ParseError as error:
        raise Fault(" ".join(str(error).split())[:200]) from None


_PLAIN = Custom(_write_plain, _read_plain, repeated=True)

# Types and values --------------------------------------------------------------------------


def _read_type(item: Any, message: onnx.TypeProto) -> None:
    message.CopyFrom(read_type(expect(item, str, "a type such as 'f32[N,3]'")))


TYPE = Custom(lambda message, limit: write_type(message), _read_type)

#: Keys that are common to most messages.
NOTES = (Key("doc_string", "doc_string", TEXT), Key("metadata", "metadata_props", METADATA))

VALUE = Table(
    [
        Key("name", "name", TEXT, required=True),
        Key("type", "type", TYPE),
        *NOTES,
    ]
)

# Tensors -----------------------------------------------------------------------------------

TENSOR = Table(
    [
        Key("name", "name", TEXT),
        *NOTES,
    ],
    others=("type", "data", "base64", "file", "offset", "length"),
)


def _write_tensor(tensor: onnx.TensorProto, limit: int) -> dict[str, Any]:
    document = TENSOR.write(tensor, limit)
    name = {"name": document.pop("name")} if "name" in document else {}
    type_ = {"type": write_tensor_type(tensor.data_type, tensor.dims)}
    return {**name, **type_, **write_contents(tensor, limit), **document}


def _read_tensor(item: Any, tensor: onnx.TensorProto) -> None:
    TENSOR.read(item, tensor)
    if "type" not in item:
        raise Fault("lacks 'type'")
    try:
        text: str = expect(item["type"], str, "a type such as 'f32[2,3]'")
        tensor.data_type, dims = read_tensor_type(text)
    except Fault as fault:
        raise fault.under("type") from None
    tensor.dims.extend(dims)
    read_contents(tensor, item)


_TENSOR = Custom(_write_tensor, _read_tensor)
_TENSORS = Custom(_write_tensor, _read_tensor, repeated=True)

SPARSE = Table(
    [
        Key("dims", "dims", INTEGERS),
        Key("values", "values", _TENSOR),
        Key("indices", "indices", _TENSOR),
    ]
)

# Attributes --------------------------------------------------------------------------------

_FLOAT = (write_float, read_float)
_STRING = (write_bytes, read_bytes)


def _write_attribute(attribute: onnx.AttributeProto, limit: int) -> dict[str, Any]:
    kind = KINDS[attribute.type]
    if attribute.ref_attr_name:
        result: dict[str, Any] = {"ref": attribute.ref_attr_name, "type": kind}
    elif kind == "undefined":
        result = {kind: None}
    elif kind in _SIMPLE:
        field, (write, _) = _SIMPLE[kind]
        value = getattr(attribute, field)
        result = {kind: write(value) if kind in _ONE else [write(item) for item in value]}
    else:
        field, form = _MESSAGES[kind]
        result = {kind: form.write(getattr(attribute, field), limit)}
    if attribute.HasField("doc_string"):
        result["doc_string"] = attribute.doc_string
    return result


def _read_attribute(item: Any, attribute: onnx.AttributeProto) -> None:
    expect(item, dict, 'an object such as {"int": 1}')
    kinds = [key for key in item if key in _NUMBERS or key == "ref"]
    for key in item:
        if key == DUPLICATE:
            raise Fault(f"has the key {quoted(item[key])} twice")
        if key not in _NUMBERS and key not in {"ref", "type", "doc_string"}:
            raise Fault(f"has an unknown type, {quoted(key)}{nearest(key, _NUMBERS)}")
    if "ref" in kinds and "type" in kinds:
        kinds.remove("type")
    if len(kinds) != 1:
        raise Fault(f"expects one type of value, found {' and '.join(kinds) or 'none'}")
    kind = kinds[0]
    try:
        if "doc_string" in item:
            TEXT.read(attribute, "doc_string", item["doc_string"])
        if kind == "ref":
            TEXT.read(attribute, "ref_attr_name", item["ref"])
            if item.get("type") not in list(_NUMBERS):
                raise Fault(f"'type' is to be one of {', '.join(_NUMBERS)}")
            attribute.type = _NUMBERS[item["type"]]
            return
        attribute.type = _NUMBERS[kind]
        if isinstance(item[kind], list) and f"{kind}s" in _NUMBERS:
            raise Fault(f"expects one {kind}, found a list; the type of several is {kind + 's'!r}")
        _read_value(item[kind], attribute, kind)
    except Fault as fault:
        # the path ends at the attribute; its type is repeated only for an error at a deeper level
        raise fault.under(kind) if kind in _MESSAGES else fault from None


def _read_value(item: Any, attribute: onnx.AttributeProto, kind: str) -> None:
    if kind in _MESSAGES:
        field, form = _MESSAGES[kind]
        form.read(attribute, field, item)
    elif kind in _ONE:
        field, (_, read) = _SIMPLE[kind]
        setattr(attribute, field, read(item))
    elif kind in _SIMPLE:
        field, (_, read) = _SIMPLE[kind]
        getattr(attribute, field).extend(each(item, read))
    elif item is not None:
        raise Fault("expects null")


class _Attributes:
    """Attributes by name."""

    repeated = True

    def write(self, value: Any, limit: int) -> dict[str, Any]:
        return {attribute.name: _write_attribute(attribute, limit) for attribute in value}

    def read(self, message: Any, name: str, item: Any) -> None:
        attributes = getattr(message, name)
        for key, value in expect(item, dict, "an object").items():
            if key == DUPLICATE:
                raise Fault(f"has the key {quoted(value)} twice")
            try:
                _read_attribute(value, attributes.add(name=key))
            except Fault as fault:
                raise fault.under(key) from None


ATTRIBUTES = _Attributes()

# Nodes, graphs, functions, models ----------------------------------------------------------

NODE = Table(
    [
        Key("op", "op_type", TEXT, required=True),
        Key("domain", "domain", TEXT),
        Key("overload", "overload", TEXT),
        Key("name", "name", TEXT),
        Key("inputs", "input", TEXTS),
        Key("outputs", "output", TEXTS),
        Key("attributes", "attribute", ATTRIBUTES),
        *NOTES,
        Key("device_configurations", "device_configurations", _PLAIN),
    ]
)

ANNOTATION = Table(
    [
        Key("tensor", "tensor_name", TEXT),
        Key("parameters", "quant_parameter_tensor_names", METADATA),
    ]
)

GRAPH = Table(
    [
        Key("name", "name", TEXT),
        Key("doc_string", "doc_string", TEXT),
        Key("inputs", "input", of(VALUE, repeated=True)),
        Key("outputs", "output", of(VALUE, repeated=True)),
        Key("nodes", "node", of(NODE, repeated=True)),
        Key("initializers", "initializer", _TENSORS),
        Key("sparse_initializers", "sparse_initializer", of(SPARSE, repeated=True)),
        Key("values", "value_info", of(VALUE, repeated=True)),
        Key("quantization_annotations", "quantization_annotation", of(ANNOTATION, repeated=True)),
        Key("metadata", "metadata_props", METADATA),
    ]
)

OPSETS = Entries("domain", "version", INTEGER)

FUNCTION = Table(
    [
        Key("name", "name", TEXT, required=True),
        Key("domain", "domain", TEXT),
        Key("overload", "overload", TEXT),
        Key("doc_string", "doc_string", TEXT),
        Key("opset_imports", "opset_import", OPSETS),
        Key("inputs", "input", TEXTS),
        Key("outputs", "output", TEXTS),
        Key("parameters", "attribute", TEXTS),
        Key("defaults", "attribute_proto", ATTRIBUTES),
        Key("nodes", "node", of(NODE, repeated=True)),
        Key("values", "value_info", of(VALUE, repeated=True)),
        Key("metadata", "metadata_props", METADATA),
    ]
)

TRAINING = Table(
    [
        Key("initialization", "initialization", of(GRAPH)),
        Key("algorithm", "algorithm", of(GRAPH)),
        Key("initialization_binding", "initialization_binding", METADATA),
        Key("update_binding", "update_binding", METADATA),
    ]
)

MODEL = Table(
    [
        Key("ir_version", "ir_version", INTEGER, required=True),
        Key("opset_imports", "opset_import", OPSETS),
        Key("producer_name", "producer_name", TEXT),
        Key("producer_version", "producer_version", TEXT),
        Key("domain", "domain", TEXT),
        Key("model_version", "model_version", INTEGER),
        *NOTES,
        Key("device_configurations", "configuration", _PLAIN),
        Key("graph", "graph", of(GRAPH), required=True),
        Key("functions", "functions", of(FUNCTION, repeated=True)),
        Key("training_info", "training_info", of(TRAINING, repeated=True)),
    ],
    others=("graphopt", "$schema"),
)

#: Types of attributes and the fields of their values, by the key in the document.
_ONE = {"float": ("f", _FLOAT), "int": ("i", (int, expect_int)), "string": ("s", _STRING)}
_SIMPLE: dict[str, Any] = {
    **_ONE,
    "floats": ("floats", _FLOAT),
    "ints": ("ints", (int, expect_int)),
    "strings": ("strings", _STRING),
}
_MESSAGES: dict[str, tuple[str, Custom]] = {
    "tensor": ("t", _TENSOR),
    "graph": ("g", of(GRAPH)),
    "sparse_tensor": ("sparse_tensor", of(SPARSE)),
    "type": ("tp", TYPE),
    "tensors": ("tensors", _TENSORS),
    "graphs": ("graphs", of(GRAPH, repeated=True)),
    "sparse_tensors": ("sparse_tensors", of(SPARSE, repeated=True)),
    "types": ("type_protos", Custom(TYPE.to_json, TYPE.from_json, repeated=True)),
}
KINDS: dict[int, str] = {
    _Attribute.UNDEFINED: "undefined",
    _Attribute.FLOAT: "float",
    _Attribute.INT: "int",
    _Attribute.STRING: "string",
    _Attribute.TENSOR: "tensor",
    _Attribute.GRAPH: "graph",
    _Attribute.SPARSE_TENSOR: "sparse_tensor",
    _Attribute.TYPE_PROTO: "type",
    _Attribute.FLOATS: "floats",
    _Attribute.INTS: "ints",
    _Attribute.STRINGS: "strings",
    _Attribute.TENSORS: "tensors",
    _Attribute.GRAPHS: "graphs",
    _Attribute.SPARSE_TENSORS: "sparse_tensors",
    _Attribute.TYPE_PROTOS: "types",
}
_NUMBERS: dict[str, Any] = {kind: number for number, kind in KINDS.items()}
