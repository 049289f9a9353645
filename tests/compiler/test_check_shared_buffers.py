"""Shared buffers are also checked in the graph that onnxruntime runs."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest

import graphopt
from graphopt import ir
from graphopt.compiler.check_shared_buffers import SharedBufferCheck
from graphopt.compiler.environment import Environment
from graphopt.errors import UsageError, VerificationFailed
from tests.model_testing import parse

WEIGHTS = ", ".join(map(str, np.random.default_rng(0).standard_normal(64).round(2)))
#: Models that are safe as written; onnxruntime fuses a reader with the writer, or removes a copy.
UNSAFE = {
    "Gemm": f"""g (float[1,8] x) => (float[1,8] y) <float[8,8] w = {{{WEIGHTS}}}, float[8] b = {{1,2,3,4,5,6,7,8}}>
        {{ p = MatMul(x, w) y = Add(p, b) }}""",
    "QuickGelu": """g (float[4,8] x) => (float[4,8] y) <float k = {1.702}>
        { a = Mul(x, k) s = Sigmoid(a) y = Mul(x, s) }""",
    "Mul": """g (float[8] x, float[8] d) => (float[8] y, float[8] z)
        { q = Cast<to = 1>(x) y = Add(q, d) z = Mul(q, y) }""",
}
SAFE = """g (float[8,4] x, int64[1,1] at, float[1,4] n) => (float[8,4] y, float[8,4] z)
    { y = ScatterND(x, at, n) z = Exp(y) }"""


def shared_run(model: ir.Model, feeds: dict[str, np.ndarray], *, optimized: bool) -> dict[str, np.ndarray]:
    """The outputs with ``y`` bound over ``x``."""
    options = onnxruntime.SessionOptions()
    level = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimized else level.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(ir.to_bytes(model), options, providers=["CPUExecutionProvider"])
    values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(value.copy()) for name, value in feeds.items()}
    binding = session.io_binding()
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    for output in session.get_outputs():
        if output.name == "y":
            binding.bind_ortvalue_output("y", values["x"])
        else:
            binding.bind_output(output.name)
    session.run_with_iobinding(binding)
    names = [output.name for output in session.get_outputs()]
    return {name: value.numpy() for name, value in zip(names, binding.get_outputs(), strict=True)}


def feeds_of(model: ir.Model) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {
        value.name or "": np.zeros((1, 1), np.int64)
        if value.dtype is ir.DataType.INT64
        else rng.standard_normal(tuple(value.shape.numpy())).astype(np.float32)
        for value in model.graph.inputs
        if value.shape is not None
    }


@pytest.mark.parametrize("op", UNSAFE)
def test_fusions_of_onnxruntime_that_overwrite_the_input_are_found(op: str) -> None:
    model = parse(UNSAFE[op], opset=18)
    expected = graphopt.run(model, feeds_of(model))
    for optimized in (False, True):
        found = shared_run(model, feeds_of(model), optimized=optimized)
        equal = all(np.allclose(found[name], value, atol=1e-5) for name, value in expected.items())
        assert equal is not optimized
    with pytest.raises(VerificationFailed, match=f"{op} .*graph that onnxruntime runs"):
        SharedBufferCheck(Environment(share_buffers=[("x", "y")]))(model)
    SharedBufferCheck(Environment(share_buffers=[("x", "y")], verify=False))(model)
    with pytest.raises(VerificationFailed, match="graph that onnxruntime runs"):
        graphopt.optimize(model, share_buffers=[("x", "y")])


def test_safe_models_are_accepted() -> None:
    model = parse(SAFE, opset=18)
    result = graphopt.optimize(model, share_buffers=[("x", "y")]).model
    expected = graphopt.run(model, feeds_of(model))
    for name, value in shared_run(result, feeds_of(model), optimized=True).items():
        np.testing.assert_array_equal(value, expected[name])


def test_a_missing_graph_is_a_remark(monkeypatch: pytest.MonkeyPatch) -> None:
    model = parse(
        "g (float[2] x) => (float[2] y) { y = com.example.Unknown(x) }", domains=', "com.example" : 1'
    )
    reason = SharedBufferCheck(Environment(share_buffers=[("x", "y")])).in_runtime(model)
    assert reason is not None and "Unknown" in reason
    model = parse(SAFE, opset=18)
    monkeypatch.setattr(SharedBufferCheck, "in_runtime", lambda *arguments: "no graph")
    report = graphopt.optimize(model, share_buffers=[("x", "y")]).report
    assert "shared buffers are not checked in onnxruntime's own graph: no graph" in report.remarks


def test_patterns_with_different_numbers_of_stars_are_refused() -> None:
    with pytest.raises(UsageError, match="as many"):
        graphopt.optimize(parse(SAFE, opset=18), share_buffers=[("x*", "y")])
