"""Predicted placements are those of sessions of the installed wheel."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from graphopt.placement import Cause, Prediction, predict
from tests.placement.conftest import PlaceModels
from tests.placement.placed_models import NAMES, placed_model


def copies(prediction: Prediction) -> Counter[tuple[str, str]]:
    """The copies, as ``cuda_sessions`` lists them."""
    return Counter((copy.op_type, copy.tensor) for copy in prediction.copies)


def test_predictions_equal_placements_of_sessions(place: PlaceModels) -> None:
    models = {name: placed_model(name) for name in NAMES}
    wrong: dict[str, Any] = {}
    for name, found in place(models).items():
        prediction = predict(models[name])
        assert "error" not in found, (name, found)
        expected = copies(prediction), []
        # a function inlined by onnxruntime
        copied = Counter(
            (op, tensor.replace("_inlfunc_scaled_", "scaled/")) for op, tensor in found["copies"]
        )
        if (copied, found["differences"]) != expected:
            wrong[name] = expected, found
    assert wrong == {}


@pytest.mark.parametrize(
    ("name", "node", "cause", "reason"),
    [
        ("an operator without a kernel", "Det(d)", Cause.NO_OPERATOR, "CUDA has no kernel of Det"),
        ("a type without a kernel", "Clip(b)", Cause.NO_TYPE, "CUDA has no kernel of Clip for int32 input"),
        ("strings", "Cast(y)", Cause.NO_TYPE, "CUDA has no kernel of Cast for string output"),
        ("an LSTM with clipping", "LSTM(z)", Cause.ATTRIBUTES, "cuDNN's LSTM has no clip"),
        ("a GRU", "GRU(y)", Cause.ATTRIBUTES, "cuDNN's GRU requires linear_before_reset = 1"),
        (
            "sizes",
            "Div(t)",
            Cause.SIZES,
            "it only computes with sizes, which are in host memory",
        ),
    ],
)
def test_nodes_on_the_cpu_have_reasons(name: str, node: str, cause: Cause, reason: str) -> None:
    (found,) = [one for one in predict(placed_model(name)).on_cpu if one.node == node]
    assert (found.cause, found.reason) == (cause, reason)
