"""A NaN in an input reaches the same elements of the result before and after the fusion of attention."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from graphopt.numerics import Numerics
from tests.rules import rule_cases

CAUSAL = ("causal-short-grouped", "causal-long-grouped", "grouped-causal")
#: Cases that are fused with a causal flag.
FLAGGED = ("causal-trilu", "causal-compared")
SIZES = {"B": 2, "S": 4, "T": 5}


def _case(name: str) -> rule_cases.Case:
    return rule_cases.read_case(Path(rule_cases.CASES) / "attention" / f"{name}.txt")


def _fused(case: rule_cases.Case, numerics: Numerics) -> onnx.ModelProto:
    after, rewrites, _ = rule_cases.apply_rule(case.before, case.rule, numerics=numerics)
    assert rewrites == 1
    return after


def _result(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return np.asarray(session.run(None, feeds)[0])


@pytest.mark.parametrize("name", CAUSAL)
@pytest.mark.parametrize("place", ["k", "v"])
def test_nan_after_a_query_is_kept(name: str, place: str) -> None:
    case = _case(name)
    random = np.random.default_rng(0)
    feeds = {
        value.name: random.standard_normal(
            [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        ).astype(np.float32)
        for value in case.before.graph.input
    }
    feeds[place][0, -1, 0] = np.nan
    before = _result(case.before, feeds)
    after = _result(_fused(case, Numerics.REASSOCIATES), feeds)
    assert np.isnan(before).any()
    assert np.array_equal(np.isnan(after), np.isnan(before))


@pytest.mark.parametrize("name", CAUSAL)
def test_fast_math_skips_keys_after_a_query(name: str) -> None:
    written = {node.op_type for node in _fused(_case(name), Numerics.APPROXIMATES).graph.node}
    assert "GroupQueryAttention" in written


def _feeds(case: rule_cases.Case) -> dict[str, np.ndarray]:
    """Random inputs; the last key is masked for all queries."""
    random = np.random.default_rng(0)
    found = {}
    for value in case.before.graph.input:
        tensor = value.type.tensor_type
        shape = [dim.dim_value or SIZES[dim.dim_param] for dim in tensor.shape.dim]
        if tensor.elem_type == onnx.TensorProto.BOOL:
            found[value.name] = np.broadcast_to(np.arange(shape[-1]) < shape[-1] - 1, shape).copy()
        else:
            found[value.name] = random.standard_normal(shape).astype(np.float32)
    return found


def test_nan_in_a_masked_key_spreads_where_a_mask_replaced_its_score() -> None:
    """The limit in docs/fusions.md: a mask is added, and the sum with NaN is NaN."""
    case = _case("standard-masked")
    feeds = _feeds(case)
    feeds["k"][0, -1, 0] = np.nan
    before, after = _result(case.before, feeds), _result(_fused(case, Numerics.REASSOCIATES), feeds)
    assert np.isfinite(before).all()
    assert np.isnan(after[0, 0]).all()  # of this batch and head
    assert np.array_equal(after[0, 1], before[0, 1])
    assert np.array_equal(after[1], before[1])


def test_results_are_equal_for_nan_in_a_masked_key_and_its_values() -> None:
    """Keys and values that are computed from one tensor are NaN together."""
    case = _case("standard-masked")
    feeds = _feeds(case)
    feeds["k"][0, -1], feeds["v"][0, -1] = np.nan, np.nan
    before, after = _result(case.before, feeds), _result(_fused(case, Numerics.REASSOCIATES), feeds)
    assert np.isnan(before[0]).all()
    assert np.array_equal(after, before, equal_nan=True)


@pytest.mark.parametrize("name", FLAGGED)
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_causal_flag_keeps_results_that_are_not_finite(name: str, number: float) -> None:
    case = _case(name)
    feeds = _feeds(case)
    feeds["k"][0, -1, 0] = number
    before, after = _result(case.before, feeds), _result(_fused(case, Numerics.REASSOCIATES), feeds)
    assert not np.isfinite(before).all()
    assert np.array_equal(np.isfinite(after), np.isfinite(before))
