"""Graphs that list one value as two outputs, which ONNX and onnxruntime accept, keep both in all pipelines."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

import graphopt

X = np.array([-1, 2], np.float32)
HEAD = '<ir_version: 8, opset_import: ["" : 17]> '
CASES = {
    "graph": (
        "g (float[2] x) => (float[2] y, float[2] y) { a = Identity(x) y = Relu(a) }",
        {"x": X},
        [[0, 2], [0, 2]],
    ),
    "loop": (
        "g (int64 n, float[2] x) => (float[2] y, float[2] z) { k = Constant <value = bool {1}> ()"
        " y, z = Loop(n, k, x, x) <body = b (int64 i, bool ci, float[2] u, float[2] v) =>"
        " (bool co, float[2] p, float[2] p) { co = Identity(ci) q = Add(u, v) p = Abs(q) }> }",
        {"x": X, "n": np.array(2)},
        [[4, 8], [4, 8]],
    ),
}


@pytest.mark.parametrize("pipeline", ["O0", "O1", "O2", "O3", "profiling", "post-grad"])
@pytest.mark.parametrize("name", CASES)
def test_repeated_outputs_are_kept(name: str, pipeline: str) -> None:
    text, feeds, expected = CASES[name]
    model = onnx.parser.parse_model(HEAD + text)
    onnx.checker.check_model(model, full_check=True)
    result = graphopt.optimize(model, pipeline=pipeline)
    assert result.verdict is not None and result.verdict.ok and result.verdict.unverifiable is None
    names = [value.name for value in model.graph.output]
    assert [value.name for value in result.model.graph.outputs] == names
    session = onnxruntime.InferenceSession(graphopt.to_proto(result.model).SerializeToString())
    found = session.run(None, feeds)
    assert [array.tolist() for array in found] == expected
