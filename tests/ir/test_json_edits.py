"""Edits of the JSON IR are effective, and faults are reported with their path."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from graphopt import ir
from graphopt.errors import InvalidModel
from tests.ir.json_models import full, save
from tests.ir.models import floats, model, run, weight

Edit = Callable[[dict[str, Any]], object]


def _edited(tmp_path: Path, edit: Edit) -> ir.Model:
    path = tmp_path / "m.json"
    nodes = [
        helper.make_node("Gemm", ["x", "w"], ["h"], "gemm", alpha=0.5, transB=1),
        helper.make_node("Transpose", ["h"], ["t"], perm=[1, 0]),
        helper.make_node("Relu", ["t"], ["y"]),
    ]
    proto = model(nodes, [weight("w", 4, 4)], outputs=[floats("y", 4, "N")])
    document = save(proto, path)
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
    assert ir.declared_type(edited.graph.inputs[0]) == "f32[7, 4]"


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
def test_faults_are_reported_with_their_path(tmp_path: Path, edit: Edit, message: str) -> None:
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
def test_invalid_documents_are_refused(text: str, message: str) -> None:
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
    """Any value at any position yields a model or a one-line error."""
    document = json.loads(ir.to_json(full(), 64))
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
