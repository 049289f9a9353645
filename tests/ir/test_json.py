"""The JSON IR: what a model says is kept to the last bit, edits take effect, and faults are told with their path."""

from __future__ import annotations

import json
import struct
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from graphopt import ir
from graphopt.errors import InvalidModel, UnsupportedModel
from graphopt.ir.json import tables, tensors, types
from tests.ir.models import external, floats, model, run, weight

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


def _check(proto: onnx.ModelProto, **options: Any) -> dict[str, Any]:
    """Write and read ``proto`` as it stands; returns the document."""
    text = ir.to_json(proto, options.get("inline_limit", 1024))
    document: dict[str, Any] = json.loads(text)
    SCHEMA.validate(document)
    back = ir.from_json(text).SerializeToString(deterministic=True)
    assert back == normal(proto).SerializeToString(deterministic=True)
    return document


def _save(proto: onnx.ModelProto, path: Path, **options: Any) -> dict[str, Any]:
    """Save ``proto`` at ``path``; what it loads as is the same, and what it says fits the schema."""
    ir.save(ir.from_proto(onnx.ModelProto.FromString(proto.SerializeToString())), path, **options)
    document: dict[str, Any] = json.loads(path.read_text())
    SCHEMA.validate(document)
    assert normal(onnx.ModelProto.FromString(ir.to_bytes(ir.load(path)))) == normal(proto)
    return document


def _full() -> onnx.ModelProto:
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


def test_everything_is_kept() -> None:
    document = _check(_full())
    node = document["graph"]["nodes"][0]
    assert node["attributes"]["f"] == {"float": 0.1}
    assert node["attributes"]["raw"] == {"string": {"base64": "//4="}}
    assert node["attributes"]["tp"] == {"type": "opt(f32[N,2])"}
    assert document["functions"][0]["nodes"][0]["attributes"]["alpha"] == {"ref": "alpha", "type": "float"}


@pytest.mark.parametrize("options", [{}, {"threshold": 1}, {"external_data": False}])
def test_everything_is_kept_in_files(tmp_path: Path, options: dict[str, Any]) -> None:
    _save(_full(), tmp_path / "m.json", **options)


def test_the_node_tests_of_onnx_are_kept() -> None:
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        protos = [case.model for case in load_model_tests(kind="node") if case.model is not None]
    for proto in protos:
        _check(proto)
    assert len(protos) > 1500


@pytest.mark.parametrize(
    ("table", "message", "apart"),
    [
        (tables.MODEL, onnx.ModelProto, ()),
        (tables.GRAPH, onnx.GraphProto, ()),
        (tables.NODE, onnx.NodeProto, ()),
        (tables.FUNCTION, onnx.FunctionProto, ()),
        (tables.VALUE, onnx.ValueInfoProto, ()),
        (tables.SPARSE, onnx.SparseTensorProto, ()),
        (tables.TRAINING, onnx.TrainingInfoProto, ()),
        (tables.ANNOTATION, onnx.TensorAnnotation, ()),
        (
            tables.TENSOR,
            onnx.TensorProto,
            (
                *("dims", "data_type", "segment", "float_data", "int32_data", "string_data", "int64_data"),
                *("raw_data", "external_data", "data_location", "double_data", "uint64_data"),
            ),
        ),
    ],
)
def test_no_field_of_onnx_is_forgotten(table: Any, message: Any, apart: tuple[str, ...]) -> None:
    fields = {field.name for field in message.DESCRIPTOR.fields}
    assert fields == {key.field for key in table.keys} | set(apart)


def test_every_type_of_attribute_has_a_name() -> None:
    assert set(tables.KINDS) == set(onnx.AttributeProto.AttributeType.values())


def test_the_schema_knows_the_keys_of_the_tables() -> None:
    schema = ir.schema()
    objects = {
        "value": tables.VALUE,
        "tensor": tables.TENSOR,
        "sparse_tensor": tables.SPARSE,
        "node": tables.NODE,
    }
    objects |= {"graph": tables.GRAPH, "function": tables.FUNCTION, "training_info": tables.TRAINING}
    objects |= {"quantization_annotation": tables.ANNOTATION}
    for name, table in objects.items():
        assert set(schema["$defs"][name]["properties"]) == set(table.names), name
    assert set(schema["properties"]) == set(tables.MODEL.names)
    of_values = schema["$defs"]["attribute"]["anyOf"][0]["properties"]
    assert set(of_values) == {*tables.KINDS.values(), "doc_string"}


# Numbers -----------------------------------------------------------------------------------

_NUMERIC = [
    dtype
    for dtype in ir.DataType
    if dtype not in (ir.DataType.UNDEFINED, ir.DataType.STRING, ir.DataType.BOOL)
]


@pytest.mark.parametrize("dtype", _NUMERIC, ids=lambda dtype: dtype.name)
def test_every_bit_of_every_type_is_kept(dtype: ir.DataType) -> None:
    generator = np.random.default_rng(0)
    count = 1024 if dtype.bitwidth <= 8 else 256
    data = generator.integers(0, 256, max(1, count * dtype.bitwidth // 8), np.uint8)
    if dtype.bitwidth <= 8:  # all there are
        data = np.arange(256, dtype=np.uint8).repeat(3)
        count = data.size * 8 // dtype.bitwidth
    tensor = TensorProto(name="t", data_type=int(dtype), dims=[count], raw_data=data.tobytes())
    document = tensors.write_contents(tensor, 1 << 30)
    back = TensorProto(data_type=int(dtype), dims=[count])
    tensors.read_contents(back, json.loads(json.dumps(document, allow_nan=False)))
    assert back.raw_data == tensor.raw_data


@pytest.mark.parametrize(
    ("dtype", "bits", "expected"),
    [
        ("f32", 0x80000000, -0.0),
        ("f32", 0x3DCCCCCD, 0.1),
        ("f32", 0x00000001, 1e-45),
        ("f32", 0x7FC00000, "nan"),
        ("f32", 0xFFC00000, "nan:0xffc00000"),
        ("f32", 0x7F800001, "nan:0x7f800001"),
        ("f32", 0xFF800000, "-inf"),
        ("f16", 0x2E66, 0.1),
        ("bf16", 0x7FC1, "nan:0x7fc1"),
        ("bf16", 0x3F80, 1.0),
    ],
)
def test_how_floats_look(dtype: str, bits: int, expected: float | str) -> None:
    number, dims = types.read_tensor_type(f"{dtype}[]")
    raw = bits.to_bytes(4 if dtype == "f32" else 2, "little")
    tensor = TensorProto(data_type=number, dims=dims, raw_data=raw)
    found = tensors.write_contents(tensor, 1024)["data"]
    assert repr(found) == repr(expected)
    back = TensorProto(data_type=number)
    tensors.read_contents(back, {"data": found})
    assert back.raw_data == raw


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=300)
def test_numbers_of_attributes_are_kept(bits: int) -> None:
    number = struct.unpack("<f", struct.pack("<I", bits))[0]
    found = json.loads(json.dumps(tensors.write_float(number), allow_nan=False))
    assert struct.pack("<f", tensors.read_float(found)) == struct.pack("<f", number)


@pytest.mark.parametrize("dims", [[], [0], [3, 0], [0, 3], [10**12, 0], [1], [1, 1, 1], [2, 3]])
def test_shapes_of_constants(dims: list[int]) -> None:
    size = int(np.prod([float(dim) for dim in dims])) if dims else 1
    for data_type, contents in (
        (TensorProto.FLOAT, [0.5]),
        (TensorProto.BOOL, [True]),
        (TensorProto.STRING, [b"s"]),
    ):
        tensor = TensorProto(data_type=data_type, dims=dims)
        if data_type == TensorProto.STRING:
            tensor.string_data.extend(contents * size)
        else:
            tensor.raw_data = (b"\x01\0\0\0" if data_type == TensorProto.FLOAT else b"\x01") * size
        back = TensorProto(data_type=data_type, dims=dims)
        tensors.read_contents(back, tensors.write_contents(tensor, 1024))
        assert back == tensor


def test_contents_in_typed_fields_become_raw() -> None:
    nan = onnx.TensorProto(name="t", data_type=TensorProto.FLOAT, dims=[2])
    # a signalling NaN, which Python's floats can't hold, in float_data
    nan.MergeFromString(b"\x22\x08\x01\x00\x80\x7f\x00\x00\x00\x80")
    assert tensors.bytes_of(nan) == b"\x01\x00\x80\x7f\x00\x00\x00\x80"
    for data_type, values in (
        (TensorProto.INT4, [-8, 7, 1]),
        (TensorProto.FLOAT16, [0.1]),
        (TensorProto.BOOL, [1]),
    ):
        tensor = helper.make_tensor("t", data_type, [len(values)], values)
        assert not tensor.raw_data
        assert tensors.bytes_of(tensor) == numpy_helper.from_array(numpy_helper.to_array(tensor)).raw_data


# Types -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "f32[]",
        "f32[...]",
        "f32[batch,3,?]",
        "f32[past_sequence_length + 1,-1,0]",
        "f32['floor(H/2)','?','...','a,b',' x','','it\\'s','7','a\\\\']",
        "f32[N@DATA_BATCH,3@'odd, one']@IMAGE",
        "seq(map(i64,f32[]))",
        "map(str,?)",
        "opt(seq(f16[N]@inner)@'')@outer",
        "sparse(f32[3,N])",
        "opaque(domain,'na,me')",
        "opaque(,)",
        "opaque('',x)",
        "seq()",
        "map(i64,)",
        "map(,f32[])",
        "?",
        "?@T",
        "[2,3]",
        "type99[...]",
        "undefined[1]",
        "bool[2]",
        "str[N]",
        "seq(opt(?))",
    ],
)
def test_types_are_kept(text: str) -> None:
    assert types.write_type(types.read_type(text)) == text


def test_types_may_have_blanks() -> None:
    assert types.write_type(types.read_type(" map( i64 , f32 [ N , 3 ] ) ")) == "map(i64,f32[N,3])"


_NAMES = st.text(st.characters(exclude_categories=("Cs",)), max_size=6)


@given(
    st.lists(st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1), _NAMES), max_size=4), st.none() | _NAMES
)
@settings(max_examples=200)
def test_any_dims_are_kept(dims: list[Any], denotation: str | None) -> None:
    proto = onnx.TypeProto()
    proto.tensor_type.elem_type = 1
    proto.tensor_type.shape.SetInParent()
    for dim in dims:
        added = proto.tensor_type.shape.dim.add()
        if isinstance(dim, str):
            added.dim_param = dim
        elif dim is not None:
            added.dim_value = dim
        if denotation is not None:
            added.denotation = denotation
    assert types.read_type(types.write_type(proto)) == proto


# Files -------------------------------------------------------------------------------------


def test_large_tensors_lie_beside_the_document(tmp_path: Path) -> None:
    constant = helper.make_node("Constant", [], ["c"], value=weight("", 8, 64, seed=1))
    nodes = [
        constant,
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("MatMul", ["h", "c"], ["y"]),
    ]
    proto = model(nodes, [weight("w", 4, 8), weight("big", 40, 40)], outputs=[floats("y", "N", 64)])
    document = _save(proto, tmp_path / "m.json")
    assert document["graph"]["nodes"][0]["attributes"]["value"]["tensor"]["file"] == "m.json.bin"
    small, big = document["graph"]["initializers"]
    assert np.array(small["data"]).shape == (4, 8)
    assert (big["type"], big["file"], big["length"]) == ("f32[40,40]", "m.json.bin", 6400)
    data = (tmp_path / "m.json.bin").read_bytes()
    assert data[big["offset"] :][:6400] == proto.graph.initializer[1].raw_data
    # where the weights lay is not part of the model
    assert ir.save(ir.load(tmp_path / "m.json"), tmp_path / "m.onnx") == [tmp_path / "m.onnx"]
    x = np.ones((2, 4), np.float32)
    np.testing.assert_array_equal(run(tmp_path / "m.onnx", x=x)[0], run(proto, x=x)[0])
    # over itself, and another time the same bytes
    before = (tmp_path / "m.json").read_bytes(), data
    ir.save(ir.load(tmp_path / "m.json"), tmp_path / "m.json")
    assert ((tmp_path / "m.json").read_bytes(), (tmp_path / "m.json.bin").read_bytes()) == before


def test_without_a_file_beside_it_a_document_holds_everything(tmp_path: Path) -> None:
    proto = model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        [weight("w", 4, 400)],
        outputs=[floats("y", "N", 400)],
    )
    document = _save(proto, tmp_path / "m.json", external_data=False)
    assert "base64" in document["graph"]["initializers"][0]
    document = _save(proto, tmp_path / "n.json", threshold=1 << 20)
    assert len(document["graph"]["initializers"][0]["data"]) == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.json", "n.json"]


def test_external_data_is_copied(tmp_path: Path) -> None:
    array = np.arange(400, dtype=np.float32)
    external(tmp_path / "m.onnx", {"w": array, "v": array + 1})
    (tmp_path / "sub").mkdir()
    ir.save(ir.load(tmp_path / "m.onnx"), tmp_path / "sub" / "m.json")
    (tmp_path / "w.bin").unlink()
    loaded = ir.load(tmp_path / "sub" / "m.json")
    np.testing.assert_array_equal(loaded.graph.initializers["v"].const_value.numpy(), array + 1)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"file": "../secret"}, "outside"),
        ({"file": "missing.bin"}, "missing"),
        ({"offset": 1 << 40}, "ends at byte"),
        ({"offset": -1}, "negative"),
        ({"length": 5}, "has 5 bytes"),
        ({"file": "a\0b"}, "no possible path"),
    ],
)
def test_the_file_beside_is_checked(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tmp_path / "m.json"
    proto = model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        [weight("w", 4, 400)],
        outputs=[floats("y", "N", 400)],
    )
    document = _save(proto, path)
    (tmp_path.parent / "secret").write_bytes(bytes(10000))
    document["graph"]["initializers"][0].update(change)
    path.write_text(json.dumps(document))
    with pytest.raises(InvalidModel, match=message):
        ir.load(path)


def test_a_failure_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proto = model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        [weight("w", 4, 400)],
        outputs=[floats("y", "N", 400)],
    )

    def fail(*arguments: Any) -> str:
        raise InvalidModel("planted")

    monkeypatch.setattr("graphopt.ir.io.to_json", fail)
    with pytest.raises(InvalidModel, match="planted"):
        ir.save(ir.from_proto(proto), tmp_path / "m.json")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["m.onnx", "m.json", "m.onnxjson", "m.onnxtxt", "m.txt"])
def test_every_form_is_written_and_read(tmp_path: Path, name: str) -> None:
    proto = model([helper.make_node("Gemm", ["x", "w"], ["y"], alpha=0.5)], [weight("w", 4, 4)])
    ir.save(ir.from_proto(proto), tmp_path / name)
    x = np.ones((2, 4), np.float32)
    loaded = ir.to_bytes(ir.load(tmp_path / name))
    np.testing.assert_array_equal(run(loaded, x=x)[0], run(proto, x=x)[0])


def test_onnx_json_holds_the_largest_floats(tmp_path: Path) -> None:
    largest = float(np.finfo(np.float32).max)
    tensor = helper.make_tensor("w", TensorProto.FLOAT, [4], [largest, -largest, 0.1, float("inf")])
    double = helper.make_tensor("d", TensorProto.DOUBLE, [1], [3.4028235e38])
    proto = model(
        [helper.make_node("Clip", ["x"], ["y"], min=-largest, max=largest)], [tensor, double], opset=6
    )
    path = tmp_path / "m.onnxjson"
    ir.save(ir.from_proto(onnx.ModelProto.FromString(proto.SerializeToString())), path)
    assert onnx.ModelProto.FromString(ir.to_bytes(ir.load(path))) == proto
    # as others write it
    path.write_text(path.read_text().replace("3.4028234663852886e+38", "3.4028235e+38"))
    assert onnx.ModelProto.FromString(ir.to_bytes(ir.load(path))) == proto
    onnx.save(proto, path, format="json")
    assert onnx.ModelProto.FromString(ir.to_bytes(ir.load(path))) == proto


def test_text_that_would_be_another_model_is_refused(tmp_path: Path) -> None:
    proto = _full()
    path = tmp_path / "m.onnxtxt"
    with pytest.raises(UnsupportedModel, match="ONNX text can't hold this model"):
        ir.save(ir.from_proto(onnx.ModelProto.FromString(proto.SerializeToString())), path)
    function = onnx.FunctionProto(name="F", domain="local", input=["a"], output=["b"])
    function.opset_import.add(domain="", version=17)
    function.node.add(op_type="Elu", input=["a"], output=["b"]).attribute.add(
        name="alpha", ref_attr_name="alpha", type=onnx.AttributeProto.FLOAT
    )
    function.attribute_proto.add(name="alpha", f=0.5, type=onnx.AttributeProto.FLOAT)
    call = helper.make_node("F", ["x"], ["y"], domain="local")
    loaded = ir.from_proto(model([call], domains=("local",), functions=[function], ir_version=10))
    with pytest.raises(UnsupportedModel, match=r"functions\[0\]\.attribute_proto would change"):
        ir.save(loaded, path)
    assert list(tmp_path.iterdir()) == []
    # commentary may get lost
    plain = model([helper.make_node("Neg", ["x"], ["y"], doc_string="a node")], [weight("w", 4, 8)])
    plain.graph.value_info.append(floats("y", "N", 4))
    plain.metadata_props.add(key="a", value="b")
    plain.graph.input[0].type.denotation = "IMAGE"
    ir.save(ir.from_proto(plain), path)
    assert [node.op_type for node in ir.load(path).graph] == ["Neg"]


# Edits and faults --------------------------------------------------------------------------

Edit = Callable[[dict[str, Any]], object]


def _edited(tmp_path: Path, edit: Edit) -> ir.Model:
    path = tmp_path / "m.json"
    nodes = [
        helper.make_node("Gemm", ["x", "w"], ["h"], "gemm", alpha=0.5, transB=1),
        helper.make_node("Transpose", ["h"], ["t"], perm=[1, 0]),
        helper.make_node("Relu", ["t"], ["y"]),
    ]
    proto = model(nodes, [weight("w", 4, 4)], outputs=[floats("y", 4, "N")])
    document = _save(proto, path)
    edit(document)
    path.write_text(json.dumps(document))
    return ir.load(path)


def test_edits_take_effect(tmp_path: Path) -> None:
    def edit(document: dict[str, Any]) -> None:
        graph = document["graph"]
        graph["nodes"][0]["attributes"]["alpha"]["float"] = 2
        graph["nodes"][1]["attributes"]["perm"] = {"ints": [0, 1]}
        graph["nodes"][2]["op"] = "Neg"
        graph["inputs"][0]["type"] = "f32[7,4]"
        graph["outputs"][0]["type"] = "f32[7,4]"
        graph["initializers"][0]["data"] = np.eye(4).tolist()

    edited = _edited(tmp_path, edit)
    assert [node.op_type for node in edited.graph] == ["Gemm", "Transpose", "Neg"]
    x = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32)
    np.testing.assert_array_equal(run(ir.to_bytes(edited), x=x)[0], -2 * x)
    assert ir.declared_type(edited.graph.inputs[0]) == "f32[7,4]"


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (
            lambda d: d["graph"]["nodes"][1]["attributes"]["perm"].update(ints=[1, "0"]),
            'graph.nodes[1].attributes.perm[1]: expects an integer, found "0"',
        ),
        (
            lambda d: d["graph"]["nodes"][0]["attributes"]["transB"].update(int=1.0),
            "graph.nodes[0].attributes.transB: expects an integer, found 1.0",
        ),
        (
            lambda d: d["graph"]["nodes"][0]["attributes"]["transB"].update(int=1 << 63),
            "graph.nodes[0].attributes.transB: 9223372036854775808 does not fit into 64 bits",
        ),
        (
            lambda d: d["graph"]["nodes"][0]["attributes"].update(alpha=0.5),
            'graph.nodes[0].attributes.alpha: expects an object such as {"int": 1}, found 0.5',
        ),
        (
            lambda d: d["graph"]["nodes"][0]["attributes"]["alpha"].update(float=1e39),
            "graph.nodes[0].attributes.alpha: 1e+39 does not fit into f32",
        ),
        (
            lambda d: d["graph"]["nodes"][0]["attributes"]["alpha"].update(flot=1),
            "graph.nodes[0].attributes.alpha: has an unknown type, 'flot'; did you mean 'float'?",
        ),
        (
            lambda d: d["graph"]["nodes"][0]["attributes"]["alpha"].update(int=1),
            "graph.nodes[0].attributes.alpha: expects one type of value, found float and int",
        ),
        (
            lambda d: d["graph"]["nodes"][0]["attributes"].update({"odd key": {"ref": "a", "type": "x"}}),
            "graph.nodes[0].attributes[\"odd key\"]: 'type' is to be one of",
        ),
        (
            lambda d: d["graph"]["nodes"][2].update(input=["t"]),
            "graph.nodes[2]: has an unknown key, 'input'; did you mean 'inputs'?",
        ),
        (lambda d: d["graph"]["nodes"][2].pop("op"), "graph.nodes[2]: lacks 'op'"),
        (lambda d: d["graph"]["nodes"].insert(0, None), "graph.nodes[0]: expects an object, found null"),
        (lambda d: d["graph"].update(nodes={}), "graph.nodes: expects a list, found an object"),
        (
            lambda d: d["graph"]["inputs"][0].update(type="f32[N,4"),
            "graph.inputs[0].type: 'f32[N,4' can't be read as a type: expects ',', found its end",
        ),
        (
            lambda d: d["graph"]["inputs"][0].update(type="float32[N]"),
            "graph.inputs[0].type: 'float32' is no element type; did you mean",
        ),
        (lambda d: d["graph"]["inputs"][0].update(type="f32[N]]"), "expects nothing more, found ']'"),
        (lambda d: d["graph"]["inputs"][0].update(type="f32[N;4]"), "can't be read as a type from ';4]' on"),
        (lambda d: d["graph"]["inputs"][0].update(type="seq(" * 40), "a type is nested more than 30 deep"),
        (lambda d: d["graph"]["inputs"][0].update(type=f"f32[{10**20}]"), "does not fit into 64 bits"),
        (
            lambda d: d["graph"]["initializers"][0]["data"][2].pop(),
            "graph.initializers[0].data[2]: expects a list of 4, found 3 entries",
        ),
        (
            lambda d: d["graph"]["initializers"][0].update(type="f32[4,5]"),
            "graph.initializers[0].data[0]: expects a list of 5, found 4 entries",
        ),
        (
            lambda d: d["graph"]["initializers"][0].update(type="f32[N]"),
            "graph.initializers[0].type: the dims of a constant are numbers",
        ),
        (
            lambda d: d["graph"]["initializers"][0].update(type="i8[1]", data=[128]),
            "graph.initializers[0].data: 128 does not fit into i8",
        ),
        (
            lambda d: d["graph"]["initializers"][0].update(type="f32[1]", data=["Nan"]),
            'graph.initializers[0].data: expects a number, nan, inf or -inf, found "Nan"',
        ),
        (
            lambda d: d["graph"]["initializers"][0].update(type="f8e4m3fn[1]", data=["inf"]),
            "graph.initializers[0].data: f8e4m3fn has no inf",
        ),
        (
            lambda d: d["graph"]["initializers"][0].update(base64="AA=="),
            'graph.initializers[0]: expects one of "data", "base64" and "file"',
        ),
        (
            lambda d: d["graph"]["initializers"][0].update(offset=0),
            'graph.initializers[0].offset: goes with "file"',
        ),
        (lambda d: d.update(opset_imports={"": "17"}), 'opset_imports[""]: expects an integer, found "17"'),
        (lambda d: d.update(graphopt=2), "graphopt: expects 1, found 2"),
        (lambda d: d.pop("graphopt"), "lacks 'graphopt', the version of the JSON IR"),
        (lambda d: d.pop("graph"), "lacks 'graph'"),
        (lambda d: d.update(irversion=3), "has an unknown key, 'irversion'; did you mean 'ir_version'?"),
        (lambda d: d["graph"].update(name="\ud800"), "graph.name: half of a surrogate pair is no character"),
        (lambda d: d["graph"]["nodes"][0].update(inputs=["x", "nowhere"]), "nowhere"),
    ],
)
def test_faults_are_told_with_their_path(tmp_path: Path, edit: Edit, message: str) -> None:
    with pytest.raises(InvalidModel) as error:
        _edited(tmp_path, edit)
    assert message in error.value.message
    assert "\n" not in error.value.message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "line 1, column 2: expecting property name"),
        ('{"graphopt": 1,\n "ir_version": 8 "x"}', "line 2, column 18: expecting ',' delimiter"),
        ("[]", "expects an object, found a list"),
        ('{"graphopt": 1, "graphopt": 1}', "has the key 'graphopt' twice"),
        (
            '{"graphopt": 1, "ir_version": 8, "graph": {"nodes": [{"op": "A", "op": "B"}]}}',
            "graph.nodes[0]: has the key",
        ),
        ('{"graphopt": NaN}', "NaN is no JSON; write 'nan' as a string"),
        ('{"graphopt": 1, "ir_version": ' + "1" * 5000 + "}", "is not JSON"),
        ("[" * 100_000, "nested too deep"),
        ('{"irVersion": "8", "graph": {}}', "onnx's own JSON has the suffix .onnxjson"),
    ],
)
def test_what_is_no_document(text: str, message: str) -> None:
    with pytest.raises(InvalidModel) as error:
        ir.from_json(text)
    assert message in error.value.message


def test_bodies_are_nested_as_deep_as_protobuf_reads() -> None:
    def nested(depth: int) -> str:
        graph: dict[str, Any] = {"name": "g", "nodes": []}
        for _ in range(depth):
            graph = {"nodes": [{"op": "If", "attributes": {"then_branch": {"graph": graph}}}]}
        return json.dumps({"graphopt": 1, "ir_version": 8, "graph": graph})

    proto = ir.from_json(nested(33))
    assert onnx.ModelProto.FromString(proto.SerializeToString()) == proto
    assert ir.from_json(ir.to_json(proto, 1024)) == proto
    with pytest.raises(InvalidModel, match="nested more than 33 deep"):
        ir.from_json(nested(34))


def test_the_file_is_named_in_the_message(tmp_path: Path) -> None:
    path = tmp_path / "broken.json"
    path.write_bytes(b'{"graphopt": 1}\xff')
    with pytest.raises(InvalidModel, match=r"broken\.json is not UTF-8"):
        ir.load(path)
    path.write_text('\ufeff{"graphopt": 1, "ir_version": 8, "graph": []}')
    with pytest.raises(InvalidModel, match=r"broken\.json: graph: expects an object, found a list"):
        ir.load(path)


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_a_mangled_document_is_refused_or_read(data: st.DataObject) -> None:
    """Whatever is put anywhere, there is a model or one line."""
    document = json.loads(ir.to_json(_full(), 64))
    for _ in range(data.draw(st.integers(1, 2))):
        place: Any = document
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            key = data.draw(st.sampled_from(keys))
            if (
                not isinstance(place[key], (dict, list))
                or not place[key]
                or data.draw(st.integers(0, 3)) == 0
            ):
                break
            place = place[key]
        odd = st.sampled_from(
            [None, True, -1, 1 << 70, 0.5, "", "x", "\ud800", [], {}, [[1]], {"int": 1}, "f32[2]"]
        )
        place[key] = data.draw(odd)
    try:
        ir.from_json(json.dumps(document)).SerializeToString()
    except InvalidModel as error:
        assert "\n" not in error.message
