"""The comparison of ``benchmarks.model_gradients``."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import model_gradients
from benchmarks.model_gradients import compare, table
from graphopt import ir
from tests.model_testing import parse

FEEDS = {"x": np.array([[1, 2, 3]], np.float32)}
MODEL = """g (float[N, 3] x) => (float[N, 3] y, float[N, 3] z) <float[3] w = {1, 2, 3}, float[3] v = {1, 0, 2}> {
    a = Mul(x, w) y = Exp(a) b = Mul(x, v) z = OP(b)
}"""


def test_gradients_of_a_model_are_compared_for_all_inputs() -> None:
    found = compare("m", parse(MODEL.replace("OP", "Sin")), [FEEDS, {"x": np.ones((4, 3), np.float32)}])
    assert (found.verdict, found.gradients, found.excluded) == ("equal", 3, 0) and found.groups >= 1
    assert table([found]).endswith("1 models: equal 1.")


def test_members_without_a_gradient_are_omitted_by_group() -> None:
    """The axes of ReduceMax are an input, and may be empty."""
    text = """g (float[N, 3] x, int64[K] axes) => (float[N, 3] y, float[A, B] z) <float[3] w = {1, 2, 3}, float[3] v = {1, 0, 2}> {
        a = Mul(x, w) y = Exp(a) b = Exp(v) c = Mul(x, b) z = ReduceMax <noop_with_empty_axes = 1>(c, axes)
    }"""
    found = compare("m", parse(text, opset=18), [FEEDS | {"axes": np.array([1])}])
    assert (found.verdict, found.gradients, found.excluded) == ("partial", 1, 2)
    assert "its axes may be empty" in found.reason


def test_a_different_gradient_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    exact, calls = model_gradients.run_model, []

    def run(model: ir.Model, feeds: object, level: object) -> dict[str, np.ndarray]:
        calls.append(model)
        found = exact(model, feeds, level)  # type: ignore[arg-type]
        return {name: value + 1 for name, value in found.items()} if len(calls) == 2 else found

    monkeypatch.setattr(model_gradients, "run_model", run)
    found = compare("m", parse(MODEL.replace("OP", "Sin")), [FEEDS])
    assert found.verdict == "different" and "off by" in found.reason
