"""The networks that `benchmarks.training` trains, as ONNX models, and in torch with the same start."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_SAMPLES = Path(__file__).resolve().parent.parent / "samples"
Feeds = dict[str, np.ndarray]


@dataclass(frozen=True)
class Task:
    """A network, its loss and its batches.

    Attributes:
        optimizer, settings: the optimizer, as for :func:`graphopt.train_step`.
        module: creates loss (a function of torch tensors) and parameters from the ONNX model's weights.
    """

    name: str
    model: Callable[[], onnx.ModelProto]
    loss: str
    optimizer: str
    settings: dict[str, Any]
    batches: Callable[[int], Iterator[Feeds]]
    module: Callable[[dict[str, np.ndarray]], tuple[Callable[..., Any], dict[str, Any]]]


def weights(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """The initializers of floating-point numbers with an axis."""
    found = {item.name: numpy_helper.to_array(item).copy() for item in model.graph.initializer}
    return {name: data for name, data in found.items() if data.dtype == np.float32 and data.ndim}


def _sample(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, _SAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _digit_batches(steps: int) -> Iterator[Feeds]:
    images, labels = _sample("09_train_digits").digits()
    random = np.random.default_rng(0)
    for _ in range(steps):
        batch = random.choice(len(images), 32, replace=False)
        yield {"images": images[batch], "labels": labels[batch]}


def _parameters(start: dict[str, np.ndarray]) -> dict[str, Any]:
    import torch

    return {name: torch.nn.Parameter(torch.from_numpy(data.copy())) for name, data in start.items()}


def _digits_in_torch(start: dict[str, np.ndarray]) -> tuple[Callable[..., Any], dict[str, Any]]:
    from torch.nn import functional as f

    p = _parameters(start)

    def loss(images: Any, labels: Any) -> Any:
        x = f.relu(f.conv2d(images, p["conv1_weight"], p["conv1_bias"], padding=1))
        x = f.relu(f.conv2d(x, p["conv2_weight"], p["conv2_bias"], padding=1))
        x = f.max_pool2d(x, 2).flatten(1)
        x = f.relu(f.linear(x, p["fc1_weight"], p["fc1_bias"]))
        return f.cross_entropy(f.linear(x, p["fc2_weight"], p["fc2_bias"]), labels)

    return loss, p


@dataclass(frozen=True)
class _Sizes:
    letters: int
    context: int
    width: int
    heads: int
    layers: int


def _gpt_in_torch(sizes: _Sizes, start: dict[str, np.ndarray]) -> tuple[Callable[..., Any], dict[str, Any]]:
    import torch
    from torch.nn import functional as f

    p = _parameters(start)
    future = torch.ones(sizes.context, sizes.context, dtype=torch.bool).triu(1)
    scale = 1 / math.sqrt(sizes.width // sizes.heads)

    def norm(x: Any, name: str) -> Any:
        return f.layer_norm(x, (sizes.width,), p[f"{name}.weight"], p[f"{name}.bias"])

    def linear(x: Any, name: str) -> Any:
        return x @ p[f"{name}.weight"] + p[f"{name}.bias"]

    def loss(ids: Any, labels: Any) -> Any:
        x = f.embedding(ids, p["letters"]) + p["places"]
        for number in range(sizes.layers):
            name = f"block{number}"
            rows = linear(norm(x, f"{name}.norm1"), f"{name}.qkv")
            rows = rows.unflatten(2, (3 * sizes.heads, -1)).transpose(1, 2)
            q, k, v = rows.split(sizes.heads, 1)
            mixed = torch.softmax((q @ k.transpose(2, 3) * scale).masked_fill(future, -1e9), -1) @ v
            x = x + linear(mixed.transpose(1, 2).flatten(2), f"{name}.out")
            up = f.gelu(linear(norm(x, f"{name}.norm2"), f"{name}.up"))
            x = x + linear(up, f"{name}.down")
        logits = norm(x, "norm") @ p["head"]
        return f.cross_entropy(logits.flatten(0, 1), labels.flatten())

    return loss, p


def _gpt_task(name: str, sizes: _Sizes, size: int) -> Task:
    def model() -> onnx.ModelProto:
        built: onnx.ModelProto = _sample("10_train_gpt").gpt(
            sizes.letters, sizes.context, sizes.width, sizes.heads, sizes.layers
        )
        return built

    def batches(steps: int) -> Iterator[Feeds]:
        page = (_SAMPLES.parent / "docs" / "gradients.md").read_text(encoding="utf-8")
        text = np.frombuffer(page.encode("ascii", "ignore"), np.uint8).astype(np.int64) % sizes.letters
        found: Iterator[Feeds] = _sample("10_train_gpt").batches(text, size, sizes.context, steps)
        return found

    return Task(
        name,
        model,
        "cross_entropy:logits,labels,axis=-1",
        "adamw",
        {"learning_rate": 1e-3, "weight_decay": 0.1, "clip_norm": 1.0},
        batches,
        lambda start: _gpt_in_torch(sizes, start),
    )


def _lstm(sizes: _Sizes) -> onnx.ModelProto:
    """A tagger of int64 ``ids`` [B, context] to ``logits`` [B, context, letters] by one LSTM layer."""
    random, width = np.random.default_rng(0), sizes.width
    shapes = {
        "letters": (sizes.letters, width),
        "w": (1, 4 * width, width),
        "r": (1, 4 * width, width),
        "b": (1, 8 * width),
        "head": (width, sizes.letters),
    }
    tensors = [
        numpy_helper.from_array(random.normal(0, 0.1, shape).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    tensors.append(numpy_helper.from_array(np.array([1]), "direction"))
    nodes = [
        helper.make_node("Gather", ["letters", "ids"], ["x"]),
        helper.make_node("Transpose", ["x"], ["steps"], perm=[1, 0, 2]),
        helper.make_node("LSTM", ["steps", "w", "r", "b"], ["all"], hidden_size=width),
        helper.make_node("Squeeze", ["all", "direction"], ["hidden"]),
        helper.make_node("Transpose", ["hidden"], ["rows"], perm=[1, 0, 2]),
        helper.make_node("MatMul", ["rows", "head"], ["logits"]),
    ]
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["B", sizes.context])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["B", sizes.context, sizes.letters])
    graph = helper.make_graph(nodes, "lstm", [ids], [logits], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def _lstm_in_torch(start: dict[str, np.ndarray]) -> tuple[Callable[..., Any], dict[str, Any]]:
    import torch
    from torch.nn import functional as f

    width = start["r"].shape[-1]
    layer: Any = torch.nn.LSTM(width, width, batch_first=True)
    gates = np.r_[0:width, 2 * width : 4 * width, width : 2 * width]  # ONNX: i o f c; torch: i f c o
    with torch.no_grad():
        for own, name in ((layer.weight_ih_l0, "w"), (layer.weight_hh_l0, "r")):
            own.copy_(torch.from_numpy(start[name][0][gates]))
        for own, half in ((layer.bias_ih_l0, 0), (layer.bias_hh_l0, 1)):
            own.copy_(torch.from_numpy(start["b"][0].reshape(2, -1)[half][gates]))
    p = {name: torch.nn.Parameter(torch.from_numpy(start[name].copy())) for name in ("letters", "head")}

    def loss(ids: Any, labels: Any) -> Any:
        logits = layer(f.embedding(ids, p["letters"]))[0] @ p["head"]
        return f.cross_entropy(logits.flatten(0, 1), labels.flatten())

    return loss, {**p, **dict(layer.named_parameters())}


def _lstm_task(name: str, sizes: _Sizes, size: int) -> Task:
    like = _gpt_task(name, sizes, size)
    return Task(
        name,
        lambda: _lstm(sizes),
        like.loss,
        "adam",
        {"learning_rate": 1e-3, "clip_norm": 1.0},
        like.batches,
        _lstm_in_torch,
    )


#: By name; the first two are the networks of the samples.
TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task(
            "digits",
            lambda: _sample("09_train_digits").network(),
            "cross_entropy:logits,labels",
            "adam",
            {"learning_rate": 1e-3},
            _digit_batches,
            _digits_in_torch,
        ),
        _gpt_task("gpt", _Sizes(96, 32, 64, 4, 2), 16),
        _gpt_task("gpt of 4 blocks", _Sizes(96, 64, 256, 8, 4), 8),
        _lstm_task("lstm", _Sizes(96, 32, 128, 1, 1), 16),
    )
}
