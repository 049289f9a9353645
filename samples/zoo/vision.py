"""A small convolutional classifier before any folding: Pad, Conv, BatchNormalization, Relu, Dropout."""

from __future__ import annotations

import numpy as np
import onnx

from zoo.writer import FLOAT, GraphWriter


def cnn(width: int = 16, size: int = 32, blocks: int = 2) -> onnx.ModelProto:
    """A stem, `blocks` residual blocks, a depthwise convolution and a linear head; dynamic batch."""
    w = GraphWriter("cnn", seed=2)
    x = w.input("image", FLOAT, ["batch", 3, size, size])
    w.output("probabilities", FLOAT, ["batch", 10])

    with w.scope("stem"):
        x = w.op("Pad", x, w.constant([0, 0, 1, 1, 0, 0, 1, 1]), w.constant(0.0), mode="constant")
        x = w.op("Relu", _conv_bn(w, x, "stem", 3, width))
        x = w.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    for i in range(blocks):
        with w.scope(f"block.{i}"):
            y = w.op("Relu", _conv_bn(w, x, f"block.{i}.conv1", width, width, pads=[1] * 4))
            y = _conv_bn(w, y, f"block.{i}.conv2", width, width, pads=[1] * 4)
            x = w.op("Relu", w.op("Add", y, x))
    with w.scope("depthwise"):
        x = _conv_bn(w, x, "depthwise", width, width, pads=[1] * 4, group=width)
        # relu6, with its bounds as constants
        x = w.op("Clip", x, w.constant(0.0), w.constant(6.0))
    with w.scope("head"):
        x = w.op("GlobalAveragePool", x)
        x = w.op("Flatten", x, axis=1)
        x = w.op("Dropout", x, w.constant(0.5))
        weight = w.weight("head.weight", w.normal(10, width))
        bias = w.weight("head.bias", w.normal(10))
        logits = w.op("Gemm", x, weight, bias, alpha=1.0, beta=1.0, transB=1)
        w.op("Softmax", w.op("Identity", logits), axis=1, result="probabilities")
    return w.model(opset=13, ir_version=7, producer="pytorch")


def _conv_bn(
    w: GraphWriter,
    x: str,
    name: str,
    inputs: int,
    outputs: int,
    group: int = 1,
    pads: list[int] | None = None,
) -> str:
    weight = w.weight(f"{name}.conv.weight", w.normal(outputs, inputs // group, 3, 3))
    y = w.op(
        "Conv",
        x,
        weight,
        kernel_shape=[3, 3],
        strides=[1, 1],
        dilations=[1, 1],
        pads=pads,
        group=group,
    )
    scale = w.weight(f"{name}.bn.weight", 1 + w.normal(outputs))
    bias = w.weight(f"{name}.bn.bias", w.normal(outputs))
    mean = w.weight(f"{name}.bn.running_mean", w.normal(outputs))
    variance = w.weight(f"{name}.bn.running_var", np.abs(w.normal(outputs)) + np.float32(0.5))
    return w.op("BatchNormalization", y, scale, bias, mean, variance, epsilon=1e-5, momentum=0.9)
