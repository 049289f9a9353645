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


def test_a_case_that_does_not_load_is_broken() -> None:
    """The other cases are still compared."""
    import numpy as np

    text = "m (float[N] x) => (float[N] y) { y = Softmax<axis = 0, axis = 0>(x) }"
    outcome = judge(Case("", text, {"x": np.ones(2, np.float32)}, lambda x: x.softmax(0)))
    assert (outcome.verdict, "axis" in outcome.reason) == ("broken", True)


@pytest.mark.slow
@pytest.mark.parametrize("by_group", [False, True], ids=["whole", "by group"])
@pytest.mark.parametrize("family", [name for name, _ in families()])
def test_gradients_are_those_of_torch(family: str, by_group: bool) -> None:
    outcomes = [judge(case, by_group=by_group) for case in dict(families())[family]]
    assert not [outcome for outcome in outcomes if outcome.verdict in ("wrong", "broken")]
