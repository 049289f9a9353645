"""No rewrite creates a product of dequantized operands that onnxruntime can't run."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest

from graphopt import ir
from graphopt.context import Options
from graphopt.optimization_attempt import Attempt
from graphopt.passes.pipelines import make_pipeline
from tests.model_testing import parse

A = np.arange(8, dtype=np.uint8).reshape(2, 4)
#: Computations of ``l``, the left operand, from the dequantized ``d``.
FORMS = {
    "transposed": "l = Transpose(d)",
    "transposed, negated twice": "n = Neg(d) m = Neg(n) l = Transpose(m)",
    "sum of one": "t = Sum(d) l = Transpose(t)",
}


def _run(model: ir.Model, level: Any) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    session = onnxruntime.InferenceSession(ir.to_bytes(model), options)
    (y,) = session.run(None, {"b": np.ones((2, 3), np.uint8), "a": A})
    return np.asarray(y)


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
@pytest.mark.parametrize("left", ["k", "a"])
@pytest.mark.parametrize("form", FORMS)
def test_results_run_in_default_sessions(form: str, left: str, level: str) -> None:
    model = parse(
        "g (uint8[2, 3] b, uint8[2, 4] a) => (float[4, 3] y) <uint8[2, 4] k = {0, 1, 2, 3, 4, 5, 6, 7},"
        " float[4] s = {0.1, 0.2, 0.3, 0.4}, uint8[4] z = {1, 1, 2, 2}, float one = {0.5}, uint8 p = {3}> {"
        f" d = DequantizeLinear<axis = 1>({left}, s, z) {FORMS[form]}"
        " r = DequantizeLinear(b, one, p) y = MatMul(l, r) }",
        opset=21,
    )
    levels = onnxruntime.GraphOptimizationLevel
    expected = _run(model, levels.ORT_DISABLE_ALL)
    Attempt(make_pipeline(level), Options(), validate_each=True).run(model)
    for optimizations in (levels.ORT_DISABLE_ALL, levels.ORT_ENABLE_ALL):
        np.testing.assert_allclose(_run(model, optimizations), expected, rtol=1e-5)
