"""A statically quantized network in QDQ form: QuantizeLinear and DequantizeLinear around each operator."""

from __future__ import annotations

import numpy as np
import onnx

from zoo.writer import FLOAT, GraphWriter


def quantized(width: int = 8) -> onnx.ModelProto:
    """Two convolutions with int8 weights per channel, uint8 activations, a Relu between, a linear head."""
    w = GraphWriter("quantized", seed=4)
    x = w.input("image", FLOAT, ["batch", 3, 16, 16])
    w.output("logits", FLOAT, ["batch", 10])

    x = _fake_quantize(w, x, "image", scale=0.04, zero_point=128)
    x = w.op("Relu", _conv(w, x, "conv1", 3, width))
    x = _fake_quantize(w, x, "conv1_out", scale=0.02, zero_point=0)
    # A second pair with the same scale: the quantizer left it at the border of two modules.
    x = _fake_quantize(w, x, "conv1_out_again", scale=0.02, zero_point=0)
    x = _fake_quantize(w, _conv(w, x, "conv2", width, width), "conv2_out", scale=0.05, zero_point=120)
    x = w.op("Flatten", w.op("GlobalAveragePool", x), axis=1)
    x = _fake_quantize(w, x, "pooled", scale=0.01, zero_point=128)
    weight = _quantized_weight(w, "head.weight", w.normal(width, 10), axis=1)
    bias = w.weight("head.bias", w.normal(10))
    w.op("Add", w.op("MatMul", x, weight), bias, result="logits")
    return w.model(opset=13, ir_version=8, producer="onnx.quantize")


def _fake_quantize(w: GraphWriter, x: str, name: str, scale: float, zero_point: int) -> str:
    s = w.weight(f"{name}_scale", np.float32(scale))
    z = w.weight(f"{name}_zero_point", np.uint8(zero_point))
    return w.op("DequantizeLinear", w.op("QuantizeLinear", x, s, z), s, z)


def _quantized_weight(w: GraphWriter, name: str, value: np.ndarray, axis: int) -> str:
    """int8 with one scale for each index of `axis`; the zero points are all 0."""
    others = tuple(i for i in range(value.ndim) if i != axis)
    scales = (np.abs(value).max(axis=others) / 127).astype(np.float32)
    steps = np.round(value / scales.reshape([-1 if i == axis else 1 for i in range(value.ndim)]))
    q = w.weight(f"{name}_quantized", steps.astype(np.int8))
    s = w.weight(f"{name}_scale", scales)
    z = w.weight(f"{name}_zero_point", np.zeros(len(scales), np.int8))
    return w.op("DequantizeLinear", q, s, z, axis=axis)


def _conv(w: GraphWriter, x: str, name: str, inputs: int, outputs: int) -> str:
    weight = _quantized_weight(w, f"{name}.weight", w.normal(outputs, inputs, 3, 3), axis=0)
    bias = w.weight(f"{name}.bias", w.normal(outputs))
    return w.op("Conv", x, weight, bias, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
