"""The original nodes of fused nodes, and of nodes in onnxruntime's blocked layout."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from graphopt import ir
from graphopt.timing.original_nodes import map_to_originals


def image_net(*nodes: onnx.NodeProto, **weights: tuple[int, ...]) -> onnx.ModelProto:
    """A model of nodes named after their outputs, from the image x to y."""
    for node in nodes:
        node.name = f"node_{node.output[0]}"
    rng = np.random.default_rng(0)
    tensors = [
        onnx.numpy_helper.from_array(rng.standard_normal(dims).astype(np.float32), name)
        for name, dims in weights.items()
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 16, 8, 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", [x], [y], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def originals_of(model: onnx.ModelProto, folder: Path) -> list[tuple[str, tuple[str, ...]]]:
    """Operator and original nodes of each node that onnxruntime runs."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(folder / "ran.onnx")
    onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    ran = {node.name or "": node for node in ir.load(folder / "ran.onnx").graph}
    found = map_to_originals(ran, ir.from_proto(model))
    return [(node.op_type, found.get(name, ())) for name, node in ran.items()]


def conv(source: str, weight: str, result: str) -> onnx.NodeProto:
    return helper.make_node("Conv", [source, weight], [result])


@pytest.mark.parametrize("add", ["Add", "Sum"])
def test_blocked_convolutions_include_the_sum_and_activation_that_onnxruntime_fuses(
    add: str, tmp_path: Path
) -> None:
    model = image_net(
        conv("x", "w0", "a"),
        helper.make_node("Relu", ["a"], ["b"]),
        conv("b", "w1", "c"),
        helper.make_node(add, ["c", "b"], ["d"]),
        helper.make_node("Relu", ["d"], ["e"]),
        conv("e", "w2", "y"),
        w0=(16, 16, 1, 1),
        w1=(16, 16, 1, 1),
        w2=(16, 16, 1, 1),
    )
    found = originals_of(model, tmp_path)
    assert [nodes for op, nodes in found if op == "Conv"] == [
        ("node_a", "node_b"),
        ("node_c", "node_d", "node_e"),
        ("node_y",),
    ]


def test_nodes_that_stay_in_the_blocked_layout_keep_their_originals(tmp_path: Path) -> None:
    model = image_net(
        conv("x", "w0", "a"),
        conv("x", "w1", "b"),
        helper.make_node("Concat", ["a", "b"], ["c"], axis=1),
        helper.make_node("Sigmoid", ["c"], ["d"]),
        helper.make_node("Mul", ["c", "d"], ["e"]),
        conv("e", "w2", "y"),
        w0=(16, 16, 1, 1),
        w1=(16, 16, 1, 1),
        w2=(16, 32, 1, 1),
    )
    found = originals_of(model, tmp_path)
    assert [nodes for op, nodes in found if not op.startswith("Reorder")] == [
        ("node_a",),
        ("node_b",),
        ("node_c",),
        ("node_d", "node_e"),
        ("node_y",),
    ]


def test_changes_of_the_layout_name_the_node_that_computes_the_value(tmp_path: Path) -> None:
    model = image_net(
        conv("x", "w0", "a"),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("ReduceMax", ["b"], ["y"], axes=[1]),
        w0=(16, 16, 1, 1),
    )
    assert originals_of(model, tmp_path)[-2:] == [
        ("ReorderOutput", ("node_b",)),
        ("ReduceMax", ("node_y",)),
    ]


def test_a_fused_node_maps_to_the_nodes_between_its_inputs_and_outputs() -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in "xy")
    weight = onnx.numpy_helper.from_array(np.ones((4, 4), np.float32), "w")

    def model(*nodes: onnx.NodeProto) -> ir.Model:
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        graph = helper.make_graph(nodes, "g", [x], [y], [weight])
        return ir.from_proto(helper.make_model(graph, opset_imports=opsets, ir_version=8))

    original = model(
        helper.make_node("Abs", ["x"], ["a"], name="abs"),
        helper.make_node("Neg", ["w"], ["v"], name="constant"),
        helper.make_node("MatMul", ["a", "v"], ["b"], name="product"),
        helper.make_node("Relu", ["b"], ["y"], name="relu"),
    )
    ran = model(
        helper.make_node("Abs", ["x"], ["a"], name="abs"),
        helper.make_node("FusedMatMul", ["a", "w"], ["y"], name="fused", domain="com.microsoft"),
    )
    nodes = {node.name or "": node for node in ran.graph}
    assert map_to_originals(nodes, original) == {"abs": ("abs",), "fused": ("product", "relu")}


def test_quantized_convolutions_with_channels_last_include_their_quantizers(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tensors = [
        onnx.numpy_helper.from_array(np.array(0.05, np.float32), "s"),
        onnx.numpy_helper.from_array(np.array(128, np.uint8), "z"),
        onnx.numpy_helper.from_array(np.array(0, np.uint8), "zero"),
        onnx.numpy_helper.from_array(rng.integers(0, 255, (16, 16, 1, 1)).astype(np.uint8), "w"),
    ]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "s", "z"], ["xd"]),
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["wd"]),
        conv("xd", "wd", "c"),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("QuantizeLinear", ["r", "s", "zero"], ["rq"]),
        helper.make_node("DequantizeLinear", ["rq", "s", "zero"], ["y"]),
    ]
    model = image_net(*nodes)
    model.graph.initializer.extend(tensors)
    found = originals_of(model, tmp_path)
    assert all(names for _, names in found), found
    (convolution,) = [names for op, names in found if op == "QLinearConv"]
    assert set(convolution) >= {"node_c", "node_rq"}
    assert next(names for op, names in found if op == "Transpose") == ("node_xq",)
