"""Models for the tests of the JSON IR, and their normal forms after a round trip."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import onnx
from onnx import TensorProto, helper, numpy_helper

from graphopt import ir
from tests.ir.models import floats, model, weight

SCHEMA = jsonschema.Draft202012Validator(ir.schema())


def normal(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The normal form of docs/json-ir.md: contents in ``raw_data``, entries with both key and value set."""
    for message in _messages(proto):
        if isinstance(message, onnx.TensorProto):
            _normalize_tensor(message)
        elif isinstance(message, onnx.AttributeProto):
            copy = onnx.AttributeProto(name=message.name, type=message.type)
            for name in ("ref_attr_name", "doc_string"):
                if message.HasField(name):
                    setattr(copy, name, getattr(message, name))
            field = _FIELDS.get(message.type)
            if field is not None and not message.ref_attr_name:
                value = getattr(message, field)
                if message.type in _REPEATED:
                    getattr(copy, field).extend(value)
                elif message.type in (
                    onnx.AttributeProto.FLOAT,
                    onnx.AttributeProto.INT,
                    onnx.AttributeProto.STRING,
                ):
                    setattr(copy, field, value)
                else:
                    getattr(copy, field).CopyFrom(value)
            message.CopyFrom(copy)
        elif isinstance(message, onnx.OperatorSetIdProto):
            message.domain, message.version = message.domain, message.version
        elif isinstance(message, onnx.StringStringEntryProto):
            message.key, message.value = message.key, message.value
    return proto


_FIELDS = {1: "f", 2: "i", 3: "s", 4: "t", 5: "g", 6: "floats", 7: "ints", 8: "strings", 9: "tensors", 10: "graphs"} | {
    11: "sparse_tensor", 12: "sparse_tensors", 13: "tp", 14: "type_protos"
}  # fmt: skip
_REPEATED = frozenset({6, 7, 8, 9, 10, 12, 14})


def _messages(root: Any) -> Iterator[Any]:
    """Every message in ``root``, the innermost first."""
    for descriptor, value in root.ListFields():
        if descriptor.message_type is not None:
            for message in value if descriptor.is_repeated else [value]:
                yield from _messages(message)
    yield root


def _normalize_tensor(tensor: onnx.TensorProto) -> None:
    if tensor.data_type == TensorProto.STRING:
        return
    array = numpy_helper.to_array(tensor)
    raw = numpy_helper.from_array(array).raw_data
    for field in ("float_data", "int32_data", "int64_data", "double_data", "uint64_data"):
        tensor.ClearField(field)
    tensor.raw_data = raw


def check(proto: onnx.ModelProto, **options: Any) -> dict[str, Any]:
    """Write and read ``proto`` unchanged; returns the document."""
    text = ir.to_json(proto, options.get("inline_limit", 1024))
    document: dict[str, Any] = json.loads(text)
    SCHEMA.validate(document)
    back = ir.from_json(text).SerializeToString(deterministic=True)
    assert back == normal(proto).SerializeToString(deterministic=True)
    return document


def save(proto: onnx.ModelProto, path: Path, **options: Any) -> dict[str, Any]:
    """Save ``proto`` at ``path``, check that it loads as the same model and satisfies the schema."""
    ir.save(ir.from_proto(onnx.ModelProto.FromString(proto.SerializeToString())), path, **options)
    document: dict[str, Any] = json.loads(path.read_text())
    SCHEMA.validate(document)
    assert normal(onnx.ModelProto.FromString(ir.to_bytes(ir.load(path)))) == normal(proto)
    return document


def full() -> onnx.ModelProto:
    """A model with something of everything."""
    sparse = helper.make_sparse_tensor(
        helper.make_tensor("s", TensorProto.FLOAT, [1], [5.0]),
        helper.make_tensor("s_indices", TensorProto.INT64, [1], [1]),
        [4],
    )
    body = helper.make_graph([helper.make_node("Neg", ["x"], ["b"])], "body", [], [floats("b", "N", 4)])
    attributes: dict[str, Any] = {
        "f": 0.1,
        "i": -(2**63),
        "s": "text",
        "raw": b"\xff\xfe",
        "fs": [0.5, float("inf"), float("-inf"), -0.0, 1e-45, 3.4e38],
        "is": [2**63 - 1, 0],
        "ss": ["a", b"\xff"],
        "t": helper.make_tensor("t", TensorProto.FLOAT, [2], [1.5, 2.5]),
        "ts": [weight("a", 2), weight("b", 1)],
        "g": body,
        "gs": [body, body],
        "sp": sparse,
        "tp": helper.make_optional_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, ["N", 2])),
        "tps": [helper.make_tensor_type_proto(TensorProto.INT64, None)],
    }
    node = helper.make_node("Everything", ["x", "", "w"], ["e"], "every/thing", domain="vendor")
    node.attribute.extend(helper.make_attribute(name, value) for name, value in attributes.items())
    node.attribute.add(name="empty", type=onnx.AttributeProto.INTS, doc_string="nothing")
    node.metadata_props.add(key="pkg.name", value='with "quotes" and ünïcode\n\u2028')
    function = helper.make_function(
        "local", "F", ["a"], ["b"],
        [helper.make_node("Elu", ["a"], ["b"]), helper.make_node("Neg", ["a"], ["c"])],
        [helper.make_opsetid("", 17)], ["alpha"], [helper.make_attribute("beta", 0.5)],
        overload="o", value_info=[floats("b", 4)],
    )  # fmt: skip
    function.node[0].attribute.add(name="alpha", ref_attr_name="alpha", type=onnx.AttributeProto.FLOAT)
    proto = model(
        [node, helper.make_node("F", ["e"], ["y"], domain="local", overload="o", alpha=1.0)],
        [weight("w", 4, 8)],
        domains=("vendor", "local"),
        functions=[function],
        ir_version=11,
        producer_name="tests",
        producer_version="",
        model_version=0,
    )
    proto.graph.sparse_initializer.append(sparse)
    proto.graph.value_info.append(floats("e", "N", None))
    proto.graph.quantization_annotation.add(tensor_name="e").quant_parameter_tensor_names.add(
        key="SCALE", value="w"
    )
    proto.metadata_props.add(key="z", value="")
    info = proto.training_info.add()
    info.algorithm.CopyFrom(body)
    info.update_binding.add(key="w", value="b")
    proto.configuration.add(name="pair", num_devices=2, device=["a", "b"])
    proto.graph.node[0].device_configurations.add(configuration_id="pair", pipeline_stage=1)
    return proto
