"""Each optimizer against its formula in numpy, step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from graphopt.errors import UsageError
from graphopt.training.optimizers import AdamW, Momentum, make
from tests.training.models import LINEAR, Batch, batches, gradient, trainer

State = dict[str, Any]
RATE = 0.05


def _sgd(p: np.ndarray, g: np.ndarray, s: State, decay: float = 0.0) -> np.ndarray:
    return p - RATE * (g + decay * p)


def _momentum(
    p: np.ndarray, g: np.ndarray, s: State, decay: float = 0.0, momentum: float = 0.9, nesterov: bool = False
) -> np.ndarray:
    g = g + decay * p
    s["b"] = momentum * s.get("b", 0) + g
    return p - RATE * (g + momentum * s["b"] if nesterov else s["b"])


def _adam(
    p: np.ndarray,
    g: np.ndarray,
    s: State,
    decay: float = 0.0,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
) -> np.ndarray:
    g = g + decay * p
    s["t"] = s.get("t", 0) + 1
    s["m"] = betas[0] * s.get("m", 0) + (1 - betas[0]) * g
    s["v"] = betas[1] * s.get("v", 0) + (1 - betas[1]) * g * g
    first, second = (1 - beta ** s["t"] for beta in betas)
    return p - RATE * (s["m"] / first) / (np.sqrt(s["v"] / second) + eps)


def _adamw(p: np.ndarray, g: np.ndarray, s: State, decay: float = 0.01, **settings: Any) -> np.ndarray:
    return _adam(p * (1 - RATE * decay), g, s, **settings)


def _trained(rule: Callable[..., np.ndarray], fed: list[Batch], **settings: Any) -> dict[str, np.ndarray]:
    p = {name: data.astype(np.float64) for name, data in LINEAR.items()}
    states: dict[str, State] = {name: {} for name in p}
    for batch in fed:
        g = gradient(p, batch)
        p = {name: rule(p[name], g[name], states[name], **settings) for name in p}
    return p


@pytest.mark.parametrize(
    ("name", "rule", "settings"),
    [
        ("sgd", _sgd, {}),
        ("sgd", _sgd, {"weight_decay": 0.3}),
        ("momentum", _momentum, {}),
        ("momentum", _momentum, {"momentum": 0.5, "nesterov": True, "weight_decay": 0.3}),
        ("adam", _adam, {}),
        ("adam", _adam, {"betas": (0.5, 0.9), "eps": 0.1, "weight_decay": 0.3}),
        ("adamw", _adamw, {}),
        ("adamw", _adamw, {"betas": (0.8, 0.95), "weight_decay": 2.0}),
    ],
)
def test_ten_steps_equal_the_formulas(
    name: str, rule: Callable[..., np.ndarray], settings: dict[str, Any]
) -> None:
    fed = list(batches(10))
    ours = trainer(name, learning_rate=RATE, **settings)
    losses = ours.fit(fed)
    renamed = {"decay" if key == "weight_decay" else key: value for key, value in settings.items()}
    expected = _trained(rule, fed, **renamed)
    for key, data in ours.parameters().items():
        np.testing.assert_allclose(data, expected[key], rtol=2e-5, atol=1e-6)
        assert not np.allclose(data, LINEAR[key], atol=1e-2)  # it moved
    assert losses[-1] < losses[0]


def test_settings_are_checked() -> None:
    assert make("momentum", momentum=None, nesterov=True) == Momentum(nesterov=True)
    assert AdamW().weight_decay == 0.01 and make("adam").weight_decay == 0
    for name, settings, message in (
        ("adem", {}, "adam"),
        ("sgd", {"betas": (0.9, 0.99)}, "sgd has no setting betas"),
        ("adam", {"momentum": 0.9}, "adam has no setting momentum"),
        ("adam", {"betas": (0.9, 1.0)}, "betas"),
        ("adam", {"betas": (0.9,)}, "betas"),
        ("adam", {"eps": -1.0}, "eps"),
        ("adam", {"eps": float("nan")}, "eps"),
        ("momentum", {"momentum": 1.5}, "momentum"),
        ("sgd", {"weight_decay": -0.1}, "weight decay"),
    ):
        with pytest.raises(UsageError, match=message):
            make(name, **settings)
