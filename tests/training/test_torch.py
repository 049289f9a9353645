"""Each optimizer compared with that of torch.optim, if torch is installed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.training.models import LINEAR, batches, trainer

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("clip_norm", [None, 0.7])
@pytest.mark.parametrize(
    ("name", "kind", "settings"),
    [
        ("sgd", "SGD", {}),
        ("sgd", "SGD", {"weight_decay": 0.2}),
        ("momentum", "SGD", {"momentum": 0.8, "weight_decay": 0.2}),
        ("momentum", "SGD", {"momentum": 0.9, "nesterov": True}),
        ("adam", "Adam", {}),
        ("adam", "Adam", {"betas": (0.5, 0.9), "eps": 1e-3, "weight_decay": 0.2}),
        ("adamw", "AdamW", {}),
        ("adamw", "AdamW", {"weight_decay": 0.5}),
    ],
)
def test_twenty_steps_equal_torch(
    name: str, kind: str, settings: dict[str, Any], clip_norm: float | None
) -> None:
    ours = trainer(name, learning_rate=0.05, clip_norm=clip_norm, **settings)
    p = {key: torch.nn.Parameter(torch.tensor(data)) for key, data in LINEAR.items()}
    theirs = getattr(torch.optim, kind)(p.values(), lr=0.05, **settings)
    for batch in batches(20):
        theirs.zero_grad()
        x, t = torch.tensor(batch["x"]), torch.tensor(batch["t"])
        loss = torch.nn.functional.mse_loss(x @ p["w"] + p["b"], t)
        loss.backward()
        if clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(list(p.values()), clip_norm)
        theirs.step()
        assert ours.step(batch) == pytest.approx(float(loss.detach()), rel=1e-4)
    for key, data in ours.parameters().items():
        np.testing.assert_allclose(data, p[key].detach().numpy(), rtol=1e-4, atol=1e-5)
