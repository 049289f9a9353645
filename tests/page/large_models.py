"""Models of many nodes."""

from __future__ import annotations

import onnx
from onnx import TensorProto, helper


def large_model(count: int) -> onnx.ModelProto:
    """A model of ``count`` nodes in residual blocks, with the names of an exporter."""
    nodes, value = [], "x"
    for index in range(count):
        block, step = divmod(index, 10)
        scope = f"/encoder/layer.{block}/attention/self"
        if step == 9:
            op, inputs = "Add", [value, f"/encoder/layer.{block}/attention/self/Relu_0_output"]
        else:
            op, inputs = ("Relu", "Sigmoid", "Tanh")[step % 3], [value]
        value = "y" if index == count - 1 else f"{scope}/{op}_{step}_output"
        nodes.append(helper.make_node(op, inputs, [value], f"{scope}/{op}_{step}"))
    graph = helper.make_graph(
        nodes,
        "large",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 64])],
    )
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])
