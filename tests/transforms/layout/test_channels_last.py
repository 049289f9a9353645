"""Convolutions with the channels last: on the CPU in integers, and for GPUs compared by conversion back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from graphopt import ir
from graphopt.api import context_for
from graphopt.context import Context, Options
from graphopt.numerics import Numerics
from graphopt.ort.devices import Device
from graphopt.ort.target import Target
from graphopt.passes.pipeline import Pipeline
from graphopt.passes.pipelines import registry
from tests.model_testing import ops, parse, run_pipeline

_FIRST, _LAST = [0, 3, 1, 2], [0, 2, 3, 1]


@dataclass(frozen=True)
class Gpu(Target):
    """A GPU with onnxruntime's channels-last convolutions."""

    def has_kernel(self, op_type: str, domain: str, opset: int, dtype: Any = None) -> bool:
        return op_type == "NhwcConv" and dtype in (ir.DataType.FLOAT, ir.DataType.FLOAT16)


def on_gpu(model: ir.Model, text: str = "layout", options: Options | None = None) -> Context:
    """Run pipeline ``text`` for a GPU."""
    cx = context_for(model, options or Options(device=Device("cuda")))
    cx.target = Gpu(Device("cuda"))
    Pipeline.parse(text, registry()).run(model, cx)
    return cx


def channels_first(model: ir.Model) -> onnx.ModelProto:
    """``model`` with each NhwcConv as Conv between Transposes, so that CPUs run it."""
    proto = ir.to_proto(model)
    nodes = []
    for node in proto.graph.node:
        if node.op_type != "NhwcConv":
            nodes.append(node)
            continue
        name, attributes = (
            node.output[0],
            {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute},
        )
        make = onnx.helper.make_node
        nodes.append(make("Transpose", [node.input[0]], [f"{name}_x"], perm=_FIRST))
        nodes.append(make("Transpose", [node.input[1]], [f"{name}_w"], perm=_FIRST))
        nodes.append(make("Conv", [f"{name}_x", f"{name}_w", *node.input[2:]], [f"{name}_y"], **attributes))
        nodes.append(make("Transpose", [f"{name}_y"], [name], perm=_LAST))
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    return proto


def outputs(proto: onnx.ModelProto, seed: int = 0) -> list[np.ndarray]:
    """The outputs for random inputs; dynamic dims are 2."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    random = np.random.default_rng(seed)
    feeds = {
        item.name: random.standard_normal([d if isinstance(d, int) else 2 for d in item.shape]).astype(
            np.float32
        )
        for item in session.get_inputs()
    }
    return [np.asarray(array) for array in session.run(None, feeds)]


def assert_equal_on_a_cpu(original: ir.Model, model: ir.Model) -> None:
    for one, other in zip(outputs(ir.to_proto(original)), outputs(channels_first(model)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def with_weights(text: str, dtype: type = np.float32, **shapes: tuple[int, ...]) -> ir.Model:
    """The model of ``text`` with random initializers of these shapes."""
    proto = onnx.parser.parse_model(text)
    random = np.random.default_rng(0)
    for name, shape in shapes.items():
        array = random.standard_normal(shape) if dtype is np.float32 else random.integers(0, 255, shape)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array.astype(dtype), name))
    return ir.from_proto(proto)


NETWORK = """<ir_version: 8, opset_import: ["": 17]>
g (float[N,3,HEIGHT,16] x) => (float[N,10] y) {
    a = Conv <strides = [2, 2], pads = [1, 1, 1, 1]> (x, w0, b0)
    b = Relu(a)
    c = Conv <group = 32, auto_pad = "SAME_UPPER"> (b, w1)
    d = Sigmoid(c)
    e = Mul(c, d)
    f = Conv <kernel_shape = [1, 1]> (e, w2)
    p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (f)
    g = GlobalAveragePool(p)
    s = Mul(p, g)
    t = Add(s, p)
    h = ReduceMean <axes = [2, 3], keepdims = 1> (t)
    i = Conv(h, w3)
    y = Flatten(i)
}"""


def network(height: str = "16") -> ir.Model:
    """A small network like MobileNet."""
    return with_weights(
        NETWORK.replace("HEIGHT", height),
        w0=(32, 3, 3, 3), b0=(32,), w1=(32, 1, 3, 3), w2=(64, 32, 1, 1), w3=(10, 64, 1, 1),
    )  # fmt: skip


def test_a_network_runs_with_the_channels_last_on_a_gpu() -> None:
    original, model = network(), network()
    cx = on_gpu(model)
    found = ops(model)
    assert found.count("NhwcConv") == 4
    assert "Conv" not in found
    assert found.count("Transpose") <= 3  # of the image, and around the pool, which has no such kernel
    assert cx.remarks == ["layout: 4 convolutions: channels last, predicted 0.78 of the time"]
    assert model.opset_imports["com.microsoft"] == 1
    ir.validate(model)
    assert_equal_on_a_cpu(original, model)
    weights = [node.inputs[1] for node in model.graph if node.op_type == "NhwcConv"]
    assert [list(ir.constant_of(value).shape) for value in weights] == [  # type: ignore[union-attr, arg-type]
        [32, 3, 3, 3], [32, 3, 3, 1], [64, 1, 1, 32], [10, 1, 1, 64],
    ]  # fmt: skip
    assert all(ir.constant_of(value) is not None for value in weights)
    assert on_gpu(model).actions == 0


def test_inferred_shapes_of_a_converted_network() -> None:
    original, model = network(), network()
    on_gpu(model)
    shapes = []
    for one in (original, model):
        cx = context_for(one)
        shapes.append(
            [cx.shape(node.outputs[0]) for node in one.graph if node.op_type in ("Conv", "NhwcConv")]
        )
    for (n, c, h, w), last in zip(shapes[0], shapes[1], strict=True):  # type: ignore[misc]
        assert last == (n, h, w, c)


def test_reasons_are_reported_where_nothing_changes() -> None:
    model = network()
    cx = run_pipeline(model, "layout")[1]
    assert cx.remarks == ["layout: 4 convolutions: no channels-last kernel for this device and type"]
    assert "NhwcConv" not in ops(model)
    cx = on_gpu(network("H"))
    assert cx.remarks == ["layout: 4 convolutions: the sizes of images or weights are not known"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (Options(portable=True), "channels-last operators are not part of the ONNX standard"),
        (Options(numerics=Numerics.EXACT), "channels-last kernels sum in another order"),
    ],
)
def test_options_that_forbid_other_operators(options: Options, reason: str) -> None:
    model = network()
    cx = on_gpu(model, options=options)
    assert cx.remarks == [f"layout: {reason}"]
    assert cx.actions == 0


def test_the_option_excludes_convolutions() -> None:
    cx = on_gpu(network(), "layout{convolutions=false}")
    assert (cx.remarks, cx.actions) == ([], 0)


def test_computed_weights_keep_their_layout() -> None:
    model = parse(
        "g (float[2,3,8,8] x, float[4,3,3,3] w) => (float y) { a = Conv(x, w) b = Relu(a) y = Abs(b) }"
    )
    on_gpu(model, "layout{force}")
    assert ops(model) == ["Conv", "Relu", "Abs"]


def test_transposes_of_models_from_tensorflow_disappear_on_a_gpu() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (float[2,8,8,3] x) => (float y) {
        a = Transpose <perm = [0, 3, 1, 2]> (x)
        b = Conv(a, w)
        c = Transpose <perm = [0, 2, 3, 1]> (b)
        d = Relu(c)
        e = Transpose <perm = [0, 3, 1, 2]> (d)
        f = Conv(e, v)
        y = Transpose <perm = [0, 2, 3, 1]> (f)
    }"""
    original, model = (with_weights(text, w=(4, 3, 3, 3), v=(4, 4, 3, 3)) for _ in range(2))
    on_gpu(model)
    assert ops(model) == ["NhwcConv", "Relu", "NhwcConv"]
    assert_equal_on_a_cpu(original, model)


QUANTIZED = """<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
g (uint8[N,3,9,8] x) => (uint8 y)
<float s = {0.1}, uint8 z = {128}, int32[8] b = {1, 2, 3, 4, 5, 6, 7, 8}> {
    a = QLinearConv <pads = [1, 1, 1, 1]> (x, s, z, w, s, z, s, z, b)
    c = com.microsoft.QLinearSigmoid(a, s, z, s, z)
    d = com.microsoft.QLinearMul(a, s, z, c, s, z, s, z)
    e = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (d)
    f = QLinearConv <group = 8> (e, s, z, v, s, z, s, z)
    h = com.microsoft.QLinearAveragePool <kernel_shape = [2, 1]> (f, s, z, s, z)
    y = com.microsoft.QLinearGlobalAveragePool(h, s, z, s, z)
}"""


def quantized() -> ir.Model:
    return with_weights(QUANTIZED, np.uint8, w=(8, 3, 3, 3), v=(8, 1, 3, 3))


def test_quantized_networks_run_with_the_channels_last_on_a_cpu_if_forced() -> None:
    original, model = quantized(), quantized()
    cx = run_pipeline(model, "layout{force}")[1]
    assert cx.remarks == ["layout: 2 convolutions: channels last, as requested"]
    kinds = [(node.domain, node.op_type, "channels_last" in node.attributes) for node in model.graph]
    assert ("com.microsoft", "QLinearConv", True) in kinds
    assert ("com.microsoft", "NhwcMaxPool", False) in kinds
    assert ("com.microsoft", "QLinearAveragePool", True) in kinds
    assert not any(kind[1] == "QLinearConv" and not kind[2] for kind in kinds)
    random = np.random.default_rng(2)
    feeds = {"x": random.integers(0, 255, (2, 3, 9, 8), dtype=np.uint8)}
    results = []
    for one in (original, model):
        session = onnxruntime.InferenceSession(ir.to_bytes(one), providers=["CPUExecutionProvider"])
        results.append(session.run(None, feeds)[0])
    np.testing.assert_array_equal(*results)


def test_quantized_networks_keep_their_layout_on_a_cpu() -> None:
    model = quantized()
    cx = run_pipeline(model, "layout")[1]
    assert cx.remarks == ["layout: 2 convolutions: on CPUs, onnxruntime's own layouts are as fast or faster"]
    assert cx.actions == 0
