"""Pages of ``graphopt report`` for small models of several kinds."""

from __future__ import annotations

import numpy as np
import onnx

from graphopt.compiler.environment import Environment
from graphopt.compiler.report_page import page_source
from graphopt.page.render import page_of
from zoo import SAMPLES

#: A convolutional network; an encoder with scopes; Loop and If with bodies; quantized; and functions.
MODELS = ("cnn", "transformer", "control_flow", "quantized", "functions")


def report_page(name: str) -> bytes:
    """The page of the optimization of a sample."""
    return optimization_page(name, SAMPLES[name].build())


def optimization_page(name: str, model: onnx.ModelProto) -> bytes:
    """The page of the optimization of ``model``."""
    command = ("graphopt", "report", f"{name}.onnx")
    return page_of(page_source(Environment(), model, labels=(f"{name}.onnx", "result"), command=command))


def large_model(nodes: int) -> onnx.ModelProto:
    """A chain of gated residual blocks of five nodes, four in a layer, and forty in a stage."""
    made, x = list[onnx.NodeProto](), "x"
    for block in range(nodes // 5):
        scope = f"/stage.{block // 40}/layer.{block // 4}"
        steps = {
            "MatMul": ("MatMul", x, "weight"),
            "Bias": ("Add", "MatMul", "bias"),
            "Sigmoid": ("Sigmoid", "Bias"),
            "Mul": ("Mul", "Bias", "Sigmoid"),
            "Residual": ("Add", "Mul", x),
        }
        for step, (op, *inputs) in steps.items():
            name = f"{scope}/{step}_{block}"
            read = [f"{scope}/{one}_{block}_output_0" if one in steps else one for one in inputs]
            made.append(onnx.helper.make_node(op, read, [f"{name}_output_0"], name))
        x = f"{scope}/Residual_{block}_output_0"
    shape = ["batch", 8]
    graph = onnx.helper.make_graph(
        made,
        "large",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)],
        [onnx.helper.make_tensor_value_info(x, onnx.TensorProto.FLOAT, shape)],
        [
            onnx.numpy_helper.from_array(np.full((8, 8), 0.01, np.float32), "weight"),
            onnx.numpy_helper.from_array(np.full(8, 0.01, np.float32), "bias"),
        ],
    )
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=10)
