"""A small model to train, its gradient in numpy, and batches for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import graphopt
from graphopt import ir
from graphopt.training.training_step import TrainingStep
from tests.model_testing import parse

Batch = dict[str, np.ndarray]
_random = np.random.default_rng(0)
#: y = x w + b.
LINEAR = {
    "w": _random.standard_normal((4, 3)).astype(np.float32),
    "b": _random.standard_normal(3).astype(np.float32),
}
LOSS = "mse:y,t"


def linear() -> ir.Model:
    """The model, whose parameters are those of ``LINEAR``."""
    w, b = (", ".join(map(str, LINEAR[name].ravel().tolist())) for name in ("w", "b"))
    return parse(
        f"m (float[N,4] x) => (float[N,3] y) <float[4,3] w = {{{w}}}, float[3] b = {{{b}}}>"
        " { h = MatMul(x, w) y = Add(h, b) }"
    )


def batches(count: int, size: int = 8, seed: int = 1) -> Iterator[Batch]:
    """Batches of an approximately linear map."""
    random = np.random.default_rng(seed)
    truth = random.standard_normal((4, 3))
    for _ in range(count):
        x = random.standard_normal((size, 4))
        noise = 0.1 * random.standard_normal((size, 3))
        yield {"x": x.astype(np.float32), "t": (x @ truth + noise).astype(np.float32)}


def gradient(p: dict[str, np.ndarray], batch: Batch) -> dict[str, np.ndarray]:
    """The gradient of the loss by w and b."""
    dy = 2 * (batch["x"] @ p["w"] + p["b"] - batch["t"]) / batch["t"].size
    return {"w": batch["x"].T @ dy, "b": dy.sum(0)}


def step(optimizer: str = "adam", **settings: Any) -> TrainingStep:
    """Its training step."""
    return graphopt.train_step(linear(), LOSS, optimizer, **settings)


def trainer(optimizer: str = "adam", **settings: Any) -> graphopt.Trainer:
    """Its trainer, on one thread."""
    return graphopt.Trainer(step(optimizer, **settings), device="cpu", threads=1)
