"""Rewrites create no graphs in which onnxruntime's propagation of quantization is wrong, and repair such graphs."""

from __future__ import annotations

from itertools import product

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from graphopt import ir
from graphopt.api import context_for
from graphopt.passes.pipeline import Pipeline
from graphopt.passes.pipelines import registry
from graphopt.rewrite import ort_qdq_miscompilation

#: Operators that move elements of ``d`` to ``t``, and their constants.
_MOVES = {
    "Transpose": ("t = Transpose<perm = [1, 0, 2]>(d)", ""),
    "Einsum": ('t = Einsum<equation = "abc->bac">(d)', ""),
    "Reshape": ("t = Reshape(d, n)", ", int64[2] n = {3, 8}"),
    "Squeeze": ("u = Unsqueeze(d, n) t = Squeeze(u, n) ", ", int64[1] n = {1}"),
    "Unsqueeze": ("t = Unsqueeze(d, n)", ", int64[1] n = {1}"),
    "Flatten": ("t = Flatten(d)", ""),
    "Slice": ("t = Slice(d, n, o)", ", int64[1] n = {1}, int64[1] o = {2}"),
    "MaxPool": ("t = MaxPool<kernel_shape = [2]>(d)", ""),
    "Dropout": ("u = Dropout(d) t = Transpose<perm = [1, 0, 2]>(u)", ""),
}


def _optimized(text: str, level: str = "O2") -> tuple[onnx.ModelProto, onnx.ModelProto]:
    before = onnx.parser.parse_model(text)
    model = ir.from_proto(onnx.parser.parse_model(text))
    Pipeline.parse(level, registry()).run(model, context_for(model))
    return before, ir.to_proto(model)


def _run(model: onnx.ModelProto, feeds: dict[str, np.ndarray], *, optimizes: bool) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    levels = ort.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimizes else levels.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def _keeps_every_bit(text: str, feeds: dict[str, np.ndarray], level: str = "O2") -> onnx.ModelProto:
    """The optimized model, whose default sessions agree with the semantics of the original."""
    before, after = _optimized(text, level)
    wanted = _run(before, feeds, optimizes=False)
    for optimizes in (False, True):
        for a, b in zip(wanted, _run(after, feeds, optimizes=optimizes), strict=True):
            assert a.dtype == b.dtype and np.array_equal(a, b), onnx.printer.to_text(after)
    return after


@pytest.mark.parametrize("opset, kinds", ((13, ("int8",)), (25, ("int8", "uint16"))))
@pytest.mark.parametrize("move", _MOVES)
def test_moves_behind_dequantize_linear(move: str, opset: int, kinds: tuple[str, ...]) -> None:
    body, constants = _MOVES[move]
    ends = (("", "t"), ("y = Sin(t) z = Cos(t)", "y, float[] z"))
    for kind, (behind, outputs) in product(kinds, ends):
        text = f"""<ir_version: 10, opset_import: ["" : {opset}]>
        g ({kind}[2, 3, 4] x) => (float[] {outputs}) <float s = {{0.05}}, {kind} p = {{3}}{constants}> {{
            d = DequantizeLinear(x, s, p) {body} {behind}
        }}"""
        x = np.random.default_rng(0).integers(0, 100, (2, 3, 4)).astype(kind)
        _keeps_every_bit(text, {"x": x})


@pytest.mark.parametrize("level", ("O1", "O2", "O3"))
def test_output_in_front_of_a_quantized_transpose(level: str) -> None:
    text = """<ir_version: 9, opset_import: ["" : 13]>
    g (float[n, 3, 4] x) => (float[n, 3, 4] y, float[A, B, C] w) <float s = {0.05}, uint8 z = {0}> {
        t = Sigmoid(x)
        t1 = Transpose<perm = [1, 0, 2]>(t)
        y = Transpose<perm = [1, 0, 2]>(t1)
        a = Transpose<perm = [2, 0, 1]>(t)
        q = QuantizeLinear(a, s, z)
        q2 = Transpose<perm = [2, 1, 0]>(q)
        w = DequantizeLinear(q2, s, z)
    }"""
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    after = _keeps_every_bit(text, {"x": x}, level)
    assert len(after.graph.node) < 7


def test_equal_values_stay_two_where_one_would_be_quantized_for_the_other() -> None:
    text = """<ir_version: 9, opset_import: ["" : 21]>
    g (float[2, 3, 4] x) => (float[2, 3, 4] a, float[3, 2, 4] w) <float s = {0.05}, uint8 z = {3}> {
        a = Sin(x)
        b = Sin(x)
        t = Transpose<perm = [1, 0, 2]>(b)
        q = QuantizeLinear(t, s, z)
        w = DequantizeLinear(q, s, z)
    }"""
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    _keeps_every_bit(text, {"x": x})


@pytest.mark.parametrize("kind", ("uint8", "int8"))
def test_body_that_reads_a_value_moved_behind_dequantize_linear(kind: str) -> None:
    """A default session of the original aborts the process, so that only the result is run in one."""
    text = f"""<ir_version: 9, opset_import: ["" : 18]>
    g ({kind}[2, 3, 4] x, bool c) => (float[A, B] y)
    <float s = {{0.05}}, {kind} z = {{3}}, int64[2] n = {{-1, 4}}> {{
        d = DequantizeLinear(x, s, z)
        t = Reshape(d, n)
        y = If(c) <
            then_branch = a () => (float[A, B] u) {{ u = Sin(t) }},
            else_branch = b () => (float[A, B] v) {{ v = Cos(t) }}
        >
    }}"""
    before, after = _optimized(text)
    assert [node.op_type for node in after.graph.node] == ["Reshape", "DequantizeLinear", "If"]
    feeds = {"x": np.arange(24).reshape(2, 3, 4).astype(kind), "c": np.array(True)}
    wanted = _run(before, feeds, optimizes=False)
    assert np.array_equal(wanted[0], _run(after, feeds, optimizes=True)[0])


def test_predicates_look_through_several_moves() -> None:
    text = """<ir_version: 10, opset_import: ["" : 21]>
    g (int8[2, 3, 4] x) => (float[A, B] y) <float s = {0.05}, int8 z = {3}, int64[2] n = {-1, 4}> {
        d = DequantizeLinear(x, s, z)
        t = Transpose<perm = [1, 0, 2]>(d)
        r = Reshape(t, n)
        y = Sin(r)
    }"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    cx = context_for(model)
    told = {node.op_type: ort_qdq_miscompilation.fails_to_load(cx, node) for node in model.graph}
    assert told == {"DequantizeLinear": False, "Transpose": True, "Reshape": True, "Sin": False}
