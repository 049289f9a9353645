"""Small models to train: a CNN, a GPT, and an encoder in the form of exporters."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.split_step import Feeds
from graphopt import ir


@dataclass(frozen=True)
class Training:
    """A model with a loss, and a batch.

    Attributes:
        about: a description.
        loss: as for :func:`graphopt.split`.
        parameters: the parameters to differentiate by.
    """

    about: str
    model: ir.Model
    loss: str
    feeds: Feeds
    parameters: list[str]


@dataclass
class _Graph:
    """A builder of graphs with reproducible random weights."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)
    parameters: list[str] = field(default_factory=list)
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def op(self, kind: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        """Add a node; returns the name of its first output."""
        name = f"{kind.lower()}_{len(self.nodes)}"
        names = [name, *(f"{name}_{index}" for index in range(1, outputs))]
        self.nodes.append(helper.make_node(kind, list(inputs), names, name=name, **attributes))
        return name

    def parameter(self, name: str, *shape: int, fill: float | None = None) -> str:
        """Add a weight: normal with variance 1 / fan-in, or filled with ``fill``."""
        self.parameters.append(name)
        fan_in = int(np.prod(shape[1:])) if len(shape) == 4 else shape[0]
        found = self.random.standard_normal(shape) / np.sqrt(fan_in) if fill is None else np.full(shape, fill)
        return self.constant(name, found.astype(np.float32))

    def constant(self, name: str, value: object) -> str:
        self.weights.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def model(self, inputs: dict[str, tuple[int, list[int | str]]], output: str) -> ir.Model:
        """The model that returns ``output`` as ``logits``."""
        self.nodes.append(helper.make_node("Identity", [output], ["logits"], name="logits"))
        graph = helper.make_graph(
            self.nodes,
            "training",
            [helper.make_tensor_value_info(name, *type_) for name, type_ in inputs.items()],
            [helper.make_tensor_value_info("logits", TensorProto.FLOAT, None)],
            self.weights,
        )
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        return ir.from_proto(made)


def cnn(batch: int = 64, size: int = 28, widths: tuple[int, ...] = (32, 32, 64, 64)) -> Training:
    """Blocks of Conv, BatchNormalization in training mode, and Relu; every second one ends with a pool."""
    g = _Graph()
    x, channels = "x", 1
    for index, width in enumerate(widths):
        w = g.parameter(f"conv{index}.weight", width, channels, 3, 3)
        x = g.op("Conv", x, w, pads=[1, 1, 1, 1])
        norm = [
            g.parameter(f"bn{index}.{name}", width, fill=fill) for name, fill in (("weight", 1), ("bias", 0))
        ]
        running = [
            g.constant(f"bn{index}.{name}", np.full(width, fill, np.float32))
            for name, fill in (("mean", 0), ("var", 1))
        ]
        x = g.op("BatchNormalization", x, *norm, *running, outputs=3, training_mode=1)
        x, channels = g.op("Relu", x), width
        if index % 2:
            x = g.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = g.op("Flatten", g.op("GlobalAveragePool", x))
    x = g.op("Gemm", x, g.parameter("fc.weight", channels, 10), g.parameter("fc.bias", 10, fill=0))
    random = np.random.default_rng(1)
    feeds: Feeds = {
        "x": random.standard_normal((batch, 1, size, size)).astype(np.float32),
        "labels": random.integers(0, 10, batch),
    }
    model = g.model({"x": (TensorProto.FLOAT, ["N", 1, size, size])}, x)
    about = f"CNN, {len(widths)} blocks of Conv, BatchNormalization, Relu; {size} x {size}, batch {batch}"
    return Training(about, model, "cross_entropy:logits,labels", feeds, g.parameters)


def _attention(g: _Graph, x: str, name: str, length: int, width: int, heads: int, causal: bool) -> str:
    projected = g.op("MatMul", x, g.parameter(f"{name}.qkv.weight", width, 3 * width))
    projected = g.op("Add", projected, g.parameter(f"{name}.qkv.bias", 3 * width, fill=0))
    g.op("Split", projected, outputs=3, axis=-1)
    last = g.nodes[-1].output
    shape = g.constant(f"{name}.heads", np.array([0, 0, heads, width // heads]))
    perms = ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
    q, k, v = (
        g.op("Transpose", g.op("Reshape", part, shape), perm=perm)
        for part, perm in zip(last, perms, strict=True)
    )
    scores = g.op(
        "Div", g.op("MatMul", q, k), g.constant(f"{name}.scale", np.float32(np.sqrt(width // heads)))
    )
    if causal:
        mask = np.triu(np.full((length, length), -1e9, np.float32), 1)
        scores = g.op("Add", scores, g.constant(f"{name}.mask", mask))
    mixed = g.op("Transpose", g.op("MatMul", g.op("Softmax", scores, axis=-1), v), perm=[0, 2, 1, 3])
    mixed = g.op("Reshape", mixed, g.constant(f"{name}.joined", np.array([0, 0, width])))
    return _linear(g, mixed, f"{name}.proj", width, width)


def _linear(g: _Graph, x: str, name: str, taken: int, given: int) -> str:
    product = g.op("MatMul", x, g.parameter(f"{name}.weight", taken, given))
    return g.op("Add", product, g.parameter(f"{name}.bias", given, fill=0))


def _norm(g: _Graph, x: str, name: str, width: int) -> str:
    scale, bias = g.parameter(f"{name}.weight", width, fill=1), g.parameter(f"{name}.bias", width, fill=0)
    return g.op("LayerNormalization", x, scale, bias, axis=-1)


def _gelu(g: _Graph, x: str, name: str, *, tanh: bool) -> str:
    """GELU in elementary operators, as exporters write it below opset 20."""
    number = {text: g.constant(f"{name}.{text}", np.float32(text)) for text in ("0.5", "1", "1.41421356")}
    if not tanh:
        inner = g.op("Add", g.op("Erf", g.op("Div", x, number["1.41421356"])), number["1"])
        return g.op("Mul", g.op("Mul", x, inner), number["0.5"])
    cube = g.op(
        "Mul",
        g.op("Pow", x, g.constant(f"{name}.3", np.float32(3))),
        g.constant(f"{name}.c", np.float32(0.044715)),
    )
    inner = g.op("Mul", g.op("Add", x, cube), g.constant(f"{name}.r", np.float32(np.sqrt(2 / np.pi))))
    return g.op("Mul", g.op("Mul", x, number["0.5"]), g.op("Add", g.op("Tanh", inner), number["1"]))


def transformer(
    *, causal: bool, blocks: int, width: int, heads: int, length: int, batch: int, words: int = 96
) -> Training:
    """A GPT (causal, tanh GELU), or an encoder (erf GELU), with pre-normalization."""
    g = _Graph()
    x = g.op("Gather", g.parameter("embedding", words, width), "ids")
    x = g.op("Add", x, g.parameter("positions", length, width))
    for index in range(blocks):
        name = f"block{index}"
        mixed = _attention(g, _norm(g, x, f"{name}.ln1", width), f"{name}.attn", length, width, heads, causal)
        x = g.op("Add", x, mixed)
        inner = _linear(g, _norm(g, x, f"{name}.ln2", width), f"{name}.fc", width, 4 * width)
        x = g.op(
            "Add",
            x,
            _linear(g, _gelu(g, inner, f"{name}.gelu", tanh=causal), f"{name}.out", 4 * width, width),
        )
    x = _linear(g, _norm(g, x, "ln", width), "head", width, words)
    random = np.random.default_rng(1)
    feeds: Feeds = {
        "ids": random.integers(0, words, (batch, length)),
        "labels": random.integers(0, words, (batch, length)),
    }
    model = g.model({"ids": (TensorProto.INT64, ["N", length])}, x)
    kind = "GPT" if causal else "encoder"
    about = f"{kind}, {blocks} blocks of width {width}, {length} tokens, batch {batch}"
    return Training(about, model, "cross_entropy:logits,labels,axis=-1", feeds, g.parameters)


def trainings() -> dict[str, Training]:
    """All models."""
    return {
        "cnn": cnn(),
        "gpt": transformer(causal=True, blocks=2, width=128, heads=4, length=64, batch=16),
        "encoder": transformer(causal=False, blocks=4, width=256, heads=4, length=128, batch=4),
    }
