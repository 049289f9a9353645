"""Rooflines of injected profiles and peaks, and the operations of nodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from graphopt import ir
from graphopt.timing.profiled_kernels import map_to_originals
from graphopt.timing.roofline import Peaks, Roofline, roofline

PEAKS = Peaks({"float": 100e9, "int8": 400e9}, 10e9)


def node_of(op: str, inputs: int, domain: str = "", **attributes: Any) -> ir.Node:
    """A node whose shapes only the profile has."""
    names = [f"i{number}" for number in range(inputs)]
    made = helper.make_node(op, names, ["y"], name="n", domain=domain, **attributes)
    graph = helper.make_graph(
        [made],
        "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    opsets = [helper.make_opsetid("", 17)] + ([helper.make_opsetid(domain, 1)] if domain else [])
    return next(iter(ir.from_proto(helper.make_model(graph, opset_imports=opsets, ir_version=8)).graph))


def events(op: str, inputs: list[dict[str, list[int]]], output: dict[str, list[int]], us: int) -> list[Any]:
    """Two runs of one kernel; the first is ten times slower."""
    args = {"op_name": op, "input_type_shape": inputs, "output_type_shape": [output]}
    kernel = {"cat": "Node", "name": "n_kernel_time", "args": args}
    return [
        {"name": "model_run", "ts": 0, "dur": 10 * us},
        {**kernel, "ts": 0, "dur": 10 * us},
        {"name": "model_run", "ts": 20 * us, "dur": us},
        {**kernel, "ts": 20 * us, "dur": us},
    ]


def of(node: ir.Node, inputs: list[dict[str, list[int]]], output: dict[str, list[int]], us: int) -> Roofline:
    return roofline("m", events(node.op_type, inputs, output, us), {"n": node}, {"n": ("a",)}, PEAKS)


def f32(*dims: int) -> dict[str, list[int]]:
    return {"float": list(dims)}


@pytest.mark.parametrize(
    ("node", "inputs", "output", "flops"),
    [
        (node_of("MatMul", 2), [f32(2, 3, 4), f32(4, 5)], f32(2, 3, 5), 2 * 2 * 3 * 4 * 5),
        (node_of("Gemm", 2, transA=1), [f32(4, 3), f32(4, 5)], f32(3, 5), 2 * 3 * 4 * 5),
        (node_of("Conv", 2, group=2), [f32(1, 4, 8, 8), f32(6, 2, 3, 3)], f32(1, 6, 6, 6), 2 * 216 * 18),
        (
            node_of("MatMulNBits", 3, "com.microsoft", K=64, N=8, bits=4, block_size=32),
            [f32(2, 64), {"uint8": [8, 2, 16]}, f32(16)],
            f32(2, 8),
            2 * 2 * 64 * 8,
        ),
        (
            node_of("MultiHeadAttention", 3, "com.microsoft", num_heads=2),
            [f32(1, 3, 8), f32(1, 5, 8), f32(1, 5, 8)],
            f32(1, 3, 8),
            2 * (2 * 3 * 5 * 8),
        ),
        (
            node_of("Attention", 2, "com.microsoft", num_heads=2),
            [f32(1, 3, 8), f32(8, 24)],
            f32(1, 3, 8),
            2 * 3 * 8 * 24 + 2 * (2 * 3 * 3 * 8),
        ),
    ],
)
def test_operations_equal_those_computed_by_hand(
    node: ir.Node, inputs: list[dict[str, list[int]]], output: dict[str, list[int]], flops: int
) -> None:
    assert of(node, inputs, output, 10).kernels[0].flops == flops


def test_shares_relate_the_time_of_later_runs_to_the_peaks() -> None:
    found = of(node_of("MatMul", 2), [f32(100, 100), f32(100, 100)], f32(100, 100), 32)
    (kernel,) = found.kernels
    assert kernel.milliseconds == pytest.approx(0.032)
    assert (kernel.flops, kernel.bytes) == (2_000_000, 120_000)
    assert kernel.compute_share == pytest.approx(0.625)
    assert kernel.bandwidth_share == pytest.approx(0.375)
    assert (kernel.bound, kernel.is_far, found.far_share) == ("compute", False, 0.0)


def test_kernels_below_half_of_both_peaks_are_far() -> None:
    found = of(node_of("MatMul", 2), [f32(100, 100), f32(100, 100)], f32(100, 100), 80)
    assert (found.kernels[0].is_far, found.far_share, found.unknown_share) == (True, 1.0, 0.0)


def test_operations_of_other_domains_are_unknown() -> None:
    found = of(node_of("Group", 1, "elsewhere"), [f32(10)], f32(10), 8)
    (kernel,) = found.kernels
    assert (kernel.flops, kernel.bytes, kernel.compute_share, kernel.bound) == (None, 80, None, None)
    assert found.unknown_share == 1.0


def test_operations_are_unknown_if_the_profile_lacks_an_input() -> None:
    assert of(node_of("MatMul", 2), [f32(3, 4)], f32(3, 5), 8).kernels[0].flops is None


def test_constants_that_the_profile_lacks_have_the_shapes_of_the_graph() -> None:
    weight = onnx.numpy_helper.from_array(np.ones((4, 5), np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="n")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, None)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [weight],
    )
    opsets = [helper.make_opsetid("", 17)]
    node = next(iter(ir.from_proto(helper.make_model(graph, opset_imports=opsets, ir_version=8)).graph))
    (kernel,) = of(node, [f32(3, 4)], f32(3, 5), 8).kernels
    assert (kernel.flops, kernel.bytes) == (2 * 3 * 4 * 5, 4 * (12 + 20 + 15))


def test_a_fused_node_maps_to_the_nodes_between_its_inputs_and_outputs() -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in "xy")
    weight = onnx.numpy_helper.from_array(np.ones((4, 4), np.float32), "w")

    def model(*nodes: onnx.NodeProto) -> ir.Model:
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        graph = helper.make_graph(nodes, "g", [x], [y], [weight])
        return ir.from_proto(helper.make_model(graph, opset_imports=opsets, ir_version=8))

    original = model(
        helper.make_node("Abs", ["x"], ["a"], name="abs"),
        helper.make_node("MatMul", ["a", "w"], ["b"], name="product"),
        helper.make_node("Relu", ["b"], ["y"], name="relu"),
    )
    ran = model(
        helper.make_node("Abs", ["x"], ["a"], name="abs"),
        helper.make_node("FusedMatMul", ["a", "w"], ["y"], name="fused", domain="com.microsoft"),
    )
    nodes = {node.name or "": node for node in ran.graph}
    assert map_to_originals(nodes, original) == {"abs": ("abs",), "fused": ("product", "relu")}
