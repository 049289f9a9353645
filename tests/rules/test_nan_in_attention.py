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
