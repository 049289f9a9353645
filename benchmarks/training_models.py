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
from onnx import numpy_helper

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
    )
}
