"""Presets create no Cast of a transposed operand at which onnxruntime crashes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from graphopt import ir
from graphopt.context import Options
from graphopt.optimization_attempt import Attempt
from graphopt.ort.model_runs import RemoteRuns
from graphopt.ort.session import Optimizations
from graphopt.passes.pipelines import make_pipeline
from graphopt.process.child import Child, ProcessCrashed
from tests.model_testing import parse

CAST = "t = Transpose<perm = [{0}]>(x) k = Cast<to = 11>(t)"
#: The axes, the computation of ``y``, and whether onnxruntime crashes with the original.
TEXTS = {
    "moved last": ("1, 2, 0", "y = MatMul(k, c)", True),
    "moved before the matrix": ("1, 0, 2", "y = MatMul(d, k)", True),
    "fused product": ("1, 2, 0", "y = com.microsoft.FusedMatMul<alpha = 0.5>(k, c)", True),
    "sum of one": ("1, 2, 0", "s = Sum(k) y = MatMul(s, c)", False),
    "negated twice": ("1, 2, 0", "n = Neg(k) s = Neg(n) y = MatMul(s, c)", False),
    "integers": (
        "1, 2, 0",
        "i = Cast<to = 6>(t) e = Cast<to = 6>(c) p = MatMul(i, e) y = Cast<to = 11>(p)",
        False,
    ),
    "matrices transposed": ("0, 2, 1", "y = MatMul(k, c)", False),
    "operands of one rank": ("1, 2, 0", "u = Unsqueeze(c, zero) y = MatMul(k, u)", False),
}


def _model(name: str) -> ir.Model:
    perm, product, _ = TEXTS[name]
    return parse(
        "g (float[2, N, 2] x) => (double[?, ?, ?] y) <double[2, 3] c = {1, 2, 3, 4, 5, 6},"
        " double[3, 2] d = {1, 2, 3, 4, 5, 6}, int64[1] zero = {0}>"
        f" {{ {CAST.format(perm)} {product} }}",
        domains=', "com.microsoft" : 1',
    )


def _outputs(model: ir.Model, level: Optimizations) -> list[Any]:
    x = np.arange(8, dtype=np.float32).reshape(2, 2, 2)
    with Child(preload=("graphopt.ort.model_runs",)) as child:
        return RemoteRuns(lambda: child, ir.to_bytes(model)).run(level, {"x": x})


@pytest.mark.parametrize("name", TEXTS)
def test_onnxruntime_crashes_with_the_originals(name: str) -> None:
    """If this fails after an update of onnxruntime, ort_cast_before_product.py is obsolete."""
    if TEXTS[name][2]:
        with pytest.raises(ProcessCrashed):
            _outputs(_model(name), "default")
    else:
        assert len(_outputs(_model(name), "default")) == 1


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
@pytest.mark.parametrize("name", TEXTS)
def test_results_load_and_are_equal(name: str, level: str) -> None:
    model = _model(name)
    (expected,) = _outputs(model, "off")
    Attempt(make_pipeline(level), Options(), validate_each=True).run(model)
    (found,) = _outputs(model, "default")
    np.testing.assert_allclose(found, expected, rtol=1e-12)
