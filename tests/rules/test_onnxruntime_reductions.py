"""Reductions whose results in onnxruntime differ from the specification: large integers, empty tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

import graphopt
from graphopt import ir
from graphopt.ort import session


def _run(model: onnx.ModelProto | ir.Model, x: np.ndarray) -> Any:
    data = model.SerializeToString() if isinstance(model, onnx.ModelProto) else ir.to_bytes(model)
    return session.create(data, optimizations="off").run(None, {"x": x})[0]


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize(
    "body",
    [
        "r = ReduceSum <keepdims = 0> (x, two) y = ReduceSum <keepdims = 0> (r, one)",
        "r = ReduceSum (x, zero) y = ReduceSum (r, two)",
        "s = Unsqueeze (x, two) r = ReduceSum (s, two) y = Identity (r)",
        "t = Transpose <perm = [2, 1, 0]> (x) y = ReduceSum <keepdims = 0> (t, two)",
        "s = Unsqueeze (x, one) t = Squeeze (s, one) y = ReduceSum <keepdims = 0> (t, one)",
        'y = Einsum <equation = "ijk->jk"> (x)',
    ],
)
def test_sums_of_large_integers_keep_their_values(body: str, dtype: type) -> None:
    """onnxruntime adds in double, and limits the sum to the range of the type."""
    kind = np.dtype(dtype).name
    model = onnx.parser.parse_model(f"""
    <ir_version: 8, opset_import: ["" : 18]>
    g ({kind}[N, 33, 17] x) => ({kind}[P, Q] y) <int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] two = {{2}}>
    {{ {body} }}""")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    optimized, _ = graphopt.optimize(model, verify=False)
    limits = np.iinfo(dtype)
    x = np.random.default_rng(0).integers(limits.min, limits.max, (9, 33, 17), dtype)
    np.testing.assert_array_equal(_run(optimized, x), _run(model, x))


def test_exact_keeps_the_shape_of_an_empty_sum() -> None:
    """onnxruntime does not reduce the shape of an empty tensor over negative axes."""
    model = onnx.parser.parse_model("""
    <ir_version: 8, opset_import: ["" : 18]>
    g (float[N, 4] x) => (float[N, M] y) <int64[1] last = {-1}> { s = ReduceSum (x, last) y = Neg (s) }""")
    empty = np.zeros((0, 4), np.float32)
    original = _run(model, empty)
    exact, _ = graphopt.optimize(model, exact=True)
    assert _run(exact, empty).shape == original.shape
    default, _ = graphopt.optimize(model)
    assert _run(default, empty).shape == (0, 1)
