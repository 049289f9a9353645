"""Predicted placements are those of sessions of the installed wheel."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from graphopt.placement import Cause, Prediction, predict
from graphopt.placement.explain_placement import explain_placement
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
        ("an LSTM with clipping", "LSTM(z)", Cause.ATTRIBUTES, "cuDNN's LSTM does not support clip"),
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


def test_remedies_of_operators_precede_those_of_o3() -> None:
    original = predict(placed_model("quantized operators"))
    found = explain_placement("CUDA", original, replace(original, nodes=(), copies=()))
    (node,) = found.on_cpu
    remedy = "quantize the model in the QDQ format: CUDA has kernels of its operators"
    assert (node.op_type, node.remedy) == ("QLinearAdd", remedy)
    assert {copy.remedy for copy in found.copies} == {remedy}


def test_nodes_that_o3_removes_need_no_other_remedy() -> None:
    original = predict(placed_model("an operator without a kernel"))
    found = explain_placement("CUDA:1", original, replace(original, nodes=(), copies=()))
    remedy = "graphopt optimize MODEL -O3 --device cuda:1 removes it"
    assert {one.remedy for one in (*found.on_cpu, *found.copies)} == {remedy}
    unchanged = explain_placement("CUDA", original, original)
    assert {one.remedy for one in (*unchanged.on_cpu, *unchanged.copies)} == {None}


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("an input on both sides", "Det runs on the CPU"),
        ("sizes as floats", "Mul computes with sizes on the CPU"),
        ("a computed condition", "the kernel of If reads it from host memory"),
        ("sizes and a computed value", "the kernel of Shape keeps it in host memory"),
    ],
)
def test_copies_have_reasons(name: str, reason: str) -> None:
    prediction = predict(placed_model(name))
    copies = explain_placement("CUDA", prediction, prediction).copies
    assert reason in [copy.reason for copy in copies]
