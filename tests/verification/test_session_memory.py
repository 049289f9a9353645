"""Memory limits of sessions."""

from __future__ import annotations

import numpy as np
import pytest

from graphopt import ir
from graphopt.ort import loadable_model
from graphopt.verification.session_memory import MemoryPlan
from graphopt.verification.verifier import Verifier
from tests.ort.build import parse

GIB = 1 << 30


def weighty(nbytes: int) -> ir.Model:
    """A model that declares so many bytes of weights, without contents."""
    model = parse("g (float[2] x) => (float[2] y) { y = Neg(x) }")
    tensor = ir.ExternalTensor("w", 0, nbytes, ir.DataType.FLOAT16, shape=ir.Shape([nbytes // 2]), name="w")
    model.graph.register_initializer(ir.Value(name="w", const_value=tensor))
    return model


@pytest.mark.parametrize(
    ("weights", "available", "single", "fits"),
    [
        (0, GIB, False, True),
        (GIB, 16 * GIB, False, True),
        (GIB, 6 * GIB, True, True),
        (GIB, 2 * GIB, True, False),
    ],
)
def test_limits_depend_on_weights_and_available_memory(
    weights: int, available: int, single: bool, fits: bool
) -> None:
    room = MemoryPlan.of(weighty(weights), 2 * GIB, available)
    assert (room.single, room.refusal is None) == (single, fits)
    assert room.limit is not None and (not fits or room.limit <= available)
    if not fits:
        assert room.refusal == "running it needs about 2.28 GB of memory, 2.15 GB available"


def test_a_model_that_does_not_fit_is_not_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    model = parse("g (float[2] x) => (float[2] y) { y = Neg(x) }")
    with Verifier(model) as judge:
        assert judge.verify(model).unverifiable is None
    monkeypatch.setattr(MemoryPlan, "of", lambda model, limit: MemoryPlan(GIB, True, "running it needs more"))
    monkeypatch.setattr(loadable_model.Artifact, "_write", None)  # and its weights are not written
    with Verifier(model) as judge:
        assert "running it needs more" in (judge.verify(model).unverifiable or "")


def test_one_process_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    model = parse("g (float[N] x) => (float[N] y) { y = Neg(x) }")
    other = parse("g (float[N] x) => (float[N] y) { z = Abs(x) y = Neg(z) }")
    monkeypatch.setattr(MemoryPlan, "of", lambda model, limit: MemoryPlan(GIB, True))
    with Verifier(model) as judge:
        assert judge.verify(model).ok and not judge.verify(other).ok
        assert judge.feeds(judge.verify(model).rows[0])["x"].dtype == np.float32
