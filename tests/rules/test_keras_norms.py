"""LayerNormalization in the forms that tf2onnx writes becomes one node, or one kernel of onnxruntime."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphopt import ir
from graphopt.numerics import Numerics
from graphopt.verification.verifier import verify
from tests.model_testing import ops, parse, run_pipeline
from tests.rules.test_ort_fusions import runtime_operators

#: The mean and the squared deviation of x, and the mean of that: by opset, as tf2onnx writes it.
MOMENTS = {
    15: """mean = GlobalAveragePool(x) d = Sub(x, mean) sq = Mul(d, d) var = GlobalAveragePool(sq)""",
    18: """mean = ReduceMean<keepdims = 1, noop_with_empty_axes = 1>(x, last) d = Sub(x, mean) sq = Mul(d, d)
           var = ReduceMean<keepdims = 1, noop_with_empty_axes = 1>(sq, last)""",
}
INVERSE = "e = Add(var, eps) root = Sqrt(e) inv = Reciprocal(root)"
#: Equivalent computations of y from ``mean``, ``d`` and ``inv`` in models of several sources.
TAILS = {
    "tf.nn.batch_normalization": """s = Mul(inv, gamma) ms = Mul(mean, s) rest = Sub(beta, ms) xs = Mul(x, s)
        y = Add(xs, rest)""",
    "Keras 3": """s = Mul(inv, gamma) xs = Mul(x, s) neg = Neg(mean) ms = Mul(neg, s) rest = Add(ms, beta)
        y = Add(xs, rest)""",
    "products in another order": "s = Mul(inv, gamma) ds = Mul(d, s) y = Add(ds, beta)",
    "scaled deviation": "ds = Mul(d, gamma) n = Div(ds, root) y = Add(n, beta)",
}
CONSTANTS = """<float eps = {0.001}, int64[1] last = {2}, float[8] gamma = {1, 2, 3, 4, 5, 6, 7, 8},
    float[1, 8] beta = {8, 7, 6, 5, 4, 3, 2, 1}>"""

#: Keras calls TensorFlow's kernel for batches, with rows as channels, where epsilon is as large as by default.
BY_BATCH_NORM = """g (float[B, 4, 8] x) => (float[B, 4, 8] y) <int64[1] zero = {0}, int64[1] two = {2},
    int64[1] minus = {-1}, int64[1] eight = {8}, int64[1] one = {1}, int64[3] axes = {0, 2, 3}, float f1 = {1}, float f0 = {0},
    float[8] gamma = {1, 2, 3, 4, 5, 6, 7, 8}, float[8] beta = {8, 7, 6, 5, 4, 3, 2, 1}> {
    shape = Shape(x) lead = Slice(shape, zero, two, zero) count = ReduceProd<axes = [0], keepdims = 1>(lead)
    to = Concat<axis = 0>(one, count, eight, one) rows = Reshape(x, to)
    ones = Expand(f1, count) zeros = Expand(f0, count)
    mean = ReduceMean<axes = [0, 2, 3], keepdims = 1>(rows) flat = Squeeze(mean, axes) d = Sub(rows, mean)
    sum = ReduceSumSquare<axes = [0, 2, 3], keepdims = 0>(d) all = Shape(rows) some = Gather(all, axes)
    n = ReduceProd<axes = [0], keepdims = 0>(some) divisor = Cast<to = 1>(n) var = Div(sum, divisor)
    b = BatchNormalization<epsilon = 0.001>(rows, ones, zeros, flat, var) back = Reshape(b, shape)
    scaled = Mul(back, gamma) y = Add(scaled, beta)
}"""


def by_moments(tail: str, opset: int) -> ir.Model:
    body = f"{MOMENTS[18 if opset == 18 else 15]} {INVERSE} {TAILS[tail]}"
    return parse(f"g (float[B, 4, 8] x) => (float[B, 4, 8] y) {CONSTANTS} {{ {body} }}", opset=opset)


@pytest.mark.parametrize("opset", [17, 18])
@pytest.mark.parametrize("tail", TAILS)
def test_arithmetic_with_moments_becomes_one_node(tail: str, opset: int) -> None:
    model = by_moments(tail, opset)
    run_pipeline(model, "O3")
    assert ops(model) == ["LayerNormalization"]
    assert verify(by_moments(tail, opset), model, numerics=Numerics.REASSOCIATES).ok


def test_keras_batch_normalization_of_rows_becomes_one_node() -> None:
    model = parse(BY_BATCH_NORM, opset=17)
    run_pipeline(model, "O3")
    assert ops(model) == ["LayerNormalization"]
    assert verify(parse(BY_BATCH_NORM, opset=17), model, numerics=Numerics.REASSOCIATES).ok


@pytest.mark.parametrize("opset", [13, 15])
@pytest.mark.parametrize("form", [*TAILS, "rows"])
def test_older_opsets_use_a_form_that_onnxruntime_fuses(form: str, opset: int, tmp_path: Path) -> None:
    def build() -> ir.Model:
        return parse(BY_BATCH_NORM, opset=opset) if form == "rows" else by_moments(form, opset)

    assert runtime_operators(build(), tmp_path)["LayerNormalization"] == 0
    model = build()
    run_pipeline(model, "O3")
    assert runtime_operators(model, tmp_path) == {"LayerNormalization": 1}
    assert verify(build(), model, numerics=Numerics.REASSOCIATES).ok
