"""Gradients against PyTorch's: all families, where torch is installed."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from benchmarks.torch_gradients.__main__ import families
from benchmarks.torch_gradients.common import Case, judge


def test_a_wrong_gradient_is_found() -> None:
    import numpy as np

    case = Case(
        "", "m (float[N] x) => (float[N] y) { y = Exp(x) }", {"x": np.ones(2, np.float32)}, lambda x: x.sin()
    )
    assert judge(case).verdict == "wrong"


@pytest.mark.slow
@pytest.mark.parametrize("family", [name for name, _ in families()])
def test_gradients_are_those_of_torch(family: str) -> None:
    outcomes = [judge(case) for case in dict(families())[family]]
    assert not [outcome for outcome in outcomes if outcome.verdict in ("wrong", "broken")]
