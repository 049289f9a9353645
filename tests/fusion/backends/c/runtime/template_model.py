"""A model of one product of each kind, which every supported version of onnxruntime runs."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

from graphopt import ir
from graphopt.context import context_for
from graphopt.ops.graphopt_operators import NATIVE_DOMAIN
from graphopt.passes.pipelines import make_pipeline

#: Sizes of the batch; other sizes are constant.
BATCHES = (1, 3)


class _Builder:
    """Nodes and constants of the model."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(0)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def constant(self, array: np.ndarray) -> str:
        name = f"c{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def normal(self, *shape: int) -> str:
        return self.constant((self.random.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32))

    def node(self, op: str, inputs: list[str], output: str, domain: str = "", **attributes: object) -> None:
        self.nodes.append(helper.make_node(op, inputs, [output], domain=domain, **attributes))


def model() -> onnx.ModelProto:
    """Each product is followed by Tanh, except for the quantized one."""
    b = _Builder()
    b.node("Conv", ["image", b.normal(20, 16, 3, 3), b.normal(20)], "conv_", pads=[1, 1, 1, 1])
    b.node("Conv", ["signal", b.normal(5, 3, 4)], "short_")
    b.node("Concat", ["image", "image"], "images", axis=1)
    b.node("Relu", ["images"], "positive")
    b.node("Conv", ["positive", b.normal(33, 32, 1, 1)], "pointwise_")
    b.node("MatMul", ["rows", b.normal(48, 33)], "matmul_")
    b.node("Gemm", ["row", b.normal(33, 48), b.normal(33)], "gemm_", transB=1)
    b.node("MatMul", ["rows", "columns"], "variable_")
    for op, gates in (("LSTM", 4), ("GRU", 3), ("RNN", 1)):
        operands = ["steps", b.normal(1, gates * 9, 16), b.normal(1, gates * 9, 9)]
        b.node(op, operands, f"{op.lower()}_", hidden_size=9)
    b.node("MultiHeadAttention", ["rows", "rows", "rows"], "attention_", "com.microsoft", num_heads=4)
    packed = b.constant(b.random.integers(0, 256, (20, 3, 8), np.uint8))
    attributes = {"K": 48, "N": 20, "bits": 4, "block_size": 16}
    b.node("MatMulNBits", ["rows", packed, b.normal(60)], "nbits_", "com.microsoft", **attributes)
    scale, zero = b.constant(np.float32(0.02)), b.constant(np.int8(3))
    weights = b.constant(b.random.integers(-128, 128, (48, 17)).astype(np.int8))
    for name, value in (("bytes", "bytes"), ("weights", weights)):
        b.node("DequantizeLinear", [value, scale, zero], f"{name}_float")
    b.node("MatMul", ["bytes_float", "weights_float"], "sums")
    b.node("QuantizeLinear", ["sums", b.constant(np.float32(0.5)), zero], "quantized")
    b.node("MatMulInteger", ["bytes", weights], "int32")
    b.node("Cast", ["int32"], "integers_float", to=onnx.TensorProto.FLOAT)
    b.node("Mul", ["integers_float", b.constant(np.float32(1e-5))], "integers_")
    filters = b.constant(b.random.integers(-128, 128, (17, 5, 3, 3)).astype(np.int8))
    operands = ["pixels", scale, zero, filters, scale, zero, b.constant(np.float32(0.6)), zero]
    b.node("QLinearConv", operands, "filtered", pads=[1, 1, 1, 1])
    for name, value, at in (("pixels", "pixels", 1), ("filters", filters, 0)):
        b.node("DequantizeLinear", [value, scale, zero], f"{name}_float", axis=at)
    b.node("Conv", ["pixels_float", "filters_float"], "convolved", pads=[1, 1, 1, 1])
    b.node("QuantizeLinear", ["convolved", b.constant(np.float32(0.6)), zero], "requantized")
    results = [node.output[0] for node in b.nodes if node.output[0].endswith("_")]
    for name in results:
        b.node("Tanh", [name], name.removesuffix("_"))
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), dims)
        for name, array in feeds(1).items()
        for dims in [["N" if (name == "steps" and axis == 1) or (name != "steps" and axis == 0) else size
                      for axis, size in enumerate(array.shape)]]
    ]  # fmt: skip
    outputs = [
        helper.make_tensor_value_info(name.removesuffix("_"), onnx.TensorProto.FLOAT, None)
        for name in results
    ]
    outputs += [
        helper.make_tensor_value_info(name, onnx.TensorProto.INT8, None)
        for name in ("quantized", "filtered", "requantized")
    ]
    graph = helper.make_graph(b.nodes, "products", inputs, outputs, b.weights)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def feeds(batch: int) -> dict[str, np.ndarray]:
    """Inputs of :func:`model`."""
    random = np.random.default_rng(batch)
    shapes = {
        "image": (batch, 16, 12, 12),
        "signal": (batch, 3, 37),
        "rows": (batch, 7, 48),
        "columns": (batch, 48, 19),
        "row": (batch, 48),
        "steps": (6, batch, 16),
    }
    found = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    found["bytes"] = random.integers(-128, 128, (batch, 4, 48)).astype(np.int8)
    found["pixels"] = random.integers(-128, 128, (batch, 5, 11, 13)).astype(np.int8)
    return found


def grouped() -> ir.Model:
    """The model with a group for each product."""
    made = ir.from_proto(model())
    with context_for(made) as cx:
        make_pipeline("fuse-groups{kernels=all}").run(made, cx)
    return made


def with_wrong_functions(made: ir.Model) -> onnx.ModelProto:
    """The model with functions of the same names that return the negated results.

    The signs of outputs show whether kernels or the nodes of functions ran.
    """
    proto = ir.to_proto(made)
    for function in proto.functions:
        if function.domain == NATIVE_DOMAIN:
            for node in function.node:
                node.output[:] = [_right(name, function) for name in node.output]
                node.input[:] = [_right(name, function) for name in node.input]
            function.node.extend(
                helper.make_node("Neg", [_right(name, function)], [name]) for name in function.output
            )
    return proto


def _right(name: str, function: onnx.FunctionProto) -> str:
    return f"{name}_right" if name in function.output else name
