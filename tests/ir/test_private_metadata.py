"""Entries of graphopt's private namespace in a file are dropped: passes believe them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import helper

import graphopt
from graphopt import ir
from tests.ir.models import floats, model

NODE = helper.make_node
SEEN = json.dumps({"type": "tensor(float)", "shape": [2, 4]})
NOTES = {
    "graphopt.profile.seen": SEEN,
    "graphopt.undefined": "1",
    "graphopt.requires_grad": "1",
    "graphopt.sparse_initializer": "1",
    "graphopt.type": "AA==",
    "graphopt.declared": "1",
    "graphopt.value_info_order": "y",
    "graphopt.outputs": "0 AA== AA==",
    "graphopt.origin": "x",
    "graphopt.sources": "[",
    "own": "kept",
}


def _noted(proto: onnx.ModelProto) -> onnx.ModelProto:
    graph, function = proto.graph, proto.functions[0]
    items: list[Any] = [
        proto,
        graph,
        function,
        *graph.input,
        *graph.output,
        *graph.value_info,
        *graph.initializer,
    ]
    for item in [*items, *graph.node, *function.node, *function.value_info, graph.node[0].attribute[0].t]:
        for key, text in NOTES.items():
            item.metadata_props.add(key=key, value=text)
    return proto


@pytest.fixture
def proto() -> onnx.ModelProto:
    function = helper.make_function(
        "local", "F", ["a"], ["b"], [NODE("Neg", ["a"], ["b"])], [helper.make_opsetid("", 17)]
    )
    function.value_info.append(floats("b", 3))
    nodes = [
        NODE("Constant", [], ["c"], value=helper.make_tensor("", 1, [1], [1.0])),
        NODE("F", ["x"], ["t"], domain="local"),
        NODE("Mul", ["t", "c"], ["u"]),
        NODE("Add", ["u", "w"], ["y"]),
    ]
    weight = helper.make_tensor("w", 1, [1], [2.0])
    made = model(nodes, [weight], functions=[function], domains=("local",), ir_version=10)
    made.graph.value_info.append(floats("t", "N", 4))
    return made


def test_private_annotations_are_removed_from_all_metadata(proto: onnx.ModelProto) -> None:
    expected = ir.to_proto(ir.from_proto(onnx.ModelProto.FromString(proto.SerializeToString())))
    found = ir.to_proto(ir.from_proto(_noted(proto)))
    text = str(found)
    assert "graphopt." not in text and text.count("kept") >= 11
    for graph, wanted in ((found.graph, expected.graph),):
        assert [node.op_type for node in graph.node] == [node.op_type for node in wanted.node]


def test_profile_annotations_in_files_are_not_trusted(tmp_path: Path) -> None:
    proto = model([NODE("Shape", ["x"], ["y"])], outputs=[helper.make_tensor_value_info("y", 7, [2])])
    proto.graph.input[0].metadata_props.add(key="graphopt.profile.seen", value=SEEN)
    onnx.save(proto, tmp_path / "m.onnx")
    done = graphopt.optimize(
        tmp_path / "m.onnx",
        pipeline="specialize-types,constant-propagation,remove-type-specializations",
        verify=False,
    )
    assert [node.op_type for node in done.model.graph] == ["Shape"]


@pytest.mark.parametrize("suffix", [".onnx", ".json", ".onnxjson"])
def test_annotations_of_values_in_bodies_are_removed(tmp_path: Path, suffix: str) -> None:
    body = helper.make_graph([NODE("Neg", ["x"], ["p"])], "body", [], [floats("p", "N", 4)])
    body.value_info.append(floats("inner", "N", 4))
    for info in (*body.output, *body.value_info):
        for key in ("graphopt.profile.seen", "graphopt.requires_grad", "graphopt.undefined"):
            info.metadata_props.add(key=key, value=SEEN)
    nodes = [
        NODE("Constant", [], ["c"], value=helper.make_tensor("", 9, [], [True])),
        NODE("If", ["c"], ["y"], then_branch=body, else_branch=body),
    ]
    onnx.save(model(nodes), tmp_path / "m.onnx")
    found = graphopt.load_model(tmp_path / "m.onnx")
    graphopt.save(found, tmp_path / f"other{suffix}")
    for loaded in (found, graphopt.load_model(tmp_path / f"other{suffix}")):
        values = [value for graph in ir.graphs_of(loaded) for value in ir.values_of(graph)]
        assert not any(key.startswith("graphopt.") for value in values for key in value.metadata_props)


def test_text_like_a_packed_attribute_is_unchanged() -> None:
    for text in (b"\xff\x00graphopt\x00", b"\xff\x00graphopt\x00nonsense"):
        proto = model([NODE("Neg", ["x"], ["y"])])
        proto.graph.node[0].attribute.add(name="note", type=onnx.AttributeProto.STRING, s=text)
        assert ir.to_proto(ir.from_proto(proto)).graph.node[0].attribute[0].s == text
