"""The JSON IR preserves models, in documents and in files."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from graphopt import ir
from graphopt.errors import InvalidModel, UnsupportedModel
from graphopt.ir.json import proto_messages
from tests.ir.json_models import check, full, save
from tests.ir.models import external, floats, model, run, weight


def test_json_keeps_all_fields() -> None:
    document = check(full())
    node = document["graph"]["nodes"][0]
    assert node["attributes"]["f"] == {"float": 0.1}
    assert node["attributes"]["raw"] == {"string": {"base64": "//4="}}
    assert node["attributes"]["tp"] == {"type": "opt(f32[N,2])"}
    assert document["functions"][0]["nodes"][0]["attributes"]["alpha"] == {"ref": "alpha", "type": "float"}


@pytest.mark.parametrize("options", [{}, {"threshold": 1}, {"weights": "inside"}])
def test_json_files_keep_all_fields(tmp_path: Path, options: dict[str, Any]) -> None:
    save(full(), tmp_path / "m.json", **options)


def test_the_node_tests_of_onnx_are_kept() -> None:
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        protos = [case.model for case in load_model_tests(kind="node") if case.model is not None]
    for proto in protos:
        check(proto)
    assert len(protos) > 1500


@pytest.mark.parametrize(
    ("table", "message", "apart"),
    [
        (proto_messages.MODEL, onnx.ModelProto, ()),
        (proto_messages.GRAPH, onnx.GraphProto, ()),
        (proto_messages.NODE, onnx.NodeProto, ()),
        (proto_messages.FUNCTION, onnx.FunctionProto, ()),
        (proto_messages.VALUE, onnx.ValueInfoProto, ()),
        (proto_messages.SPARSE, onnx.SparseTensorProto, ()),
        (proto_messages.TRAINING, onnx.TrainingInfoProto, ()),
        (proto_messages.ANNOTATION, onnx.TensorAnnotation, ()),
        (
            proto_messages.TENSOR,
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
    assert set(proto_messages.KINDS) == set(onnx.AttributeProto.AttributeType.values())


def test_schema_has_the_keys_of_the_tables() -> None:
    schema = ir.schema()
    objects = {
        "value": proto_messages.VALUE,
        "tensor": proto_messages.TENSOR,
        "sparse_tensor": proto_messages.SPARSE,
        "node": proto_messages.NODE,
    }
    objects |= {
        "graph": proto_messages.GRAPH,
        "function": proto_messages.FUNCTION,
        "training_info": proto_messages.TRAINING,
    }
    objects |= {"quantization_annotation": proto_messages.ANNOTATION}
    for name, table in objects.items():
        assert set(schema["$defs"][name]["properties"]) == set(table.names), name
    assert set(schema["properties"]) == set(proto_messages.MODEL.names)
    of_values = schema["$defs"]["attribute"]["anyOf"][0]["properties"]
    assert set(of_values) == {*proto_messages.KINDS.values(), "doc_string"}


def test_large_tensors_are_in_a_data_file(tmp_path: Path) -> None:
    constant = helper.make_node("Constant", [], ["c"], value=weight("", 8, 64, seed=1))
    nodes = [
        constant,
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("MatMul", ["h", "c"], ["y"]),
    ]
    proto = model(nodes, [weight("w", 4, 8), weight("big", 40, 40)], outputs=[floats("y", "N", 64)])
    document = save(proto, tmp_path / "m.json")
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


def test_document_without_data_file_is_complete(tmp_path: Path) -> None:
    proto = model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        [weight("w", 4, 400)],
        outputs=[floats("y", "N", 400)],
    )
    document = save(proto, tmp_path / "m.json", weights="inside")
    assert "base64" in document["graph"]["initializers"][0]
    document = save(proto, tmp_path / "n.json", threshold=1 << 20)
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
        ({"file": "a\0b"}, "an invalid path"),
    ],
)
def test_the_file_beside_is_checked(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tmp_path / "m.json"
    proto = model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        [weight("w", 4, 400)],
        outputs=[floats("y", "N", 400)],
    )
    document = save(proto, path)
    (tmp_path.parent / "secret").write_bytes(bytes(10000))
    document["graph"]["initializers"][0].update(change)
    path.write_text(json.dumps(document))
    with pytest.raises(InvalidModel, match=message):
        ir.load(path)


def test_failure_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proto = model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        [weight("w", 4, 400)],
        outputs=[floats("y", "N", 400)],
    )

    def fail(*arguments: Any) -> str:
        raise InvalidModel("planted")

    monkeypatch.setattr("graphopt.ir.json.to_json", fail)
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


def test_onnx_json_represents_the_largest_floats(tmp_path: Path) -> None:
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
    proto = full()
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
