"""No rewrite creates a form whose outputs onnxruntime loses."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest

from graphopt import ir
from graphopt.context import Options
from graphopt.optimization_attempt import Attempt
from graphopt.passes.pipelines import make_pipeline
from tests.model_testing import parse

GEMM = "s = Transpose(b) y = Gemm <transA = 1> (t, s)"
#: In each, ``u`` is the transposed ``a``, which Gemm reads, too.
TEXTS = (
    f"t = Transpose(a) {GEMM} u = Identity(t)",
    f"t = Transpose(a) {GEMM} u = Transpose(a)",
    f"u = Transpose(a) t = Transpose(a) {GEMM}",
    f"t = Transpose(a) {GEMM} v = Transpose(t) u = Transpose(v)",
    f"t = Transpose(a) {GEMM} u = Cast <to = 1> (t)",
)


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
@pytest.mark.parametrize("text", TEXTS)
def test_a_returned_transpose_is_kept_from_gemm(text: str, level: str) -> None:
    model = parse(f"g (float[M, K] a, float[N, K] b) => (float[M, N] y, float[K, M] u) {{ {text} }}")
    Attempt(make_pipeline(level), Options()).run(model)
    session = onnxruntime.InferenceSession(ir.to_bytes(model), providers=["CPUExecutionProvider"])
    a, b = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones((4, 3), np.float32)
    y, u = session.run(["y", "u"], {"a": a, "b": b})
    np.testing.assert_allclose(y, a @ b.T)
    np.testing.assert_array_equal(u, a.T)
