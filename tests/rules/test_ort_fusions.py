"""Presets preserve the fusions of onnxruntime."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest

import graphopt
from graphopt import ir
from tests.model_testing import parse, run_pipeline

NORM = """m = ReduceMean<axes = [-1]>(x) d = Sub(x, m) p = Pow(d, two) v = ReduceMean<axes = [-1]>(p)
          e = Add(v, eps) s = Sqrt(e) n = Div(d, s)"""
ROOT = """p = Pow(x, two) v = ReduceMean<axes = [-1]>(p) e = Add(v, eps) s = Sqrt(e)"""

#: Computations of y from x [B, 4, 8], and the operators into which onnxruntime fuses them.
FORMS = {
    "layer norm": (NORM + "g = Mul(n, gamma) y = Add(g, beta)", "LayerNormalization"),
    "layer norm of scale 1": (NORM + "g = Mul(n, ones) y = Add(g, zeros)", "LayerNormalization"),
    "rms norm": (ROOT + "n = Div(x, s) y = Mul(n, gamma)", "SimplifiedLayerNormalization"),
    "rms norm of scale 1": (ROOT + "n = Div(x, s) y = Mul(ones, n)", "SimplifiedLayerNormalization"),
    "rms norm by a reciprocal": (
        ROOT + "r = Div(one, s) n = Mul(x, r) y = Mul(n, ones)",
        "SimplifiedLayerNormalization",
    ),
    "gelu": (
        "a = Div(x, root) b = Erf(a) c = Add(b, one) d = Mul(x, c) f = Mul(d, half) y = MatMul(f, w)",
        "Gelu",
    ),
    "gelu, halved first": (
        "a = Div(x, root) b = Erf(a) c = Add(b, one) h = Mul(x, half) f = Mul(h, c) y = MatMul(f, w)",
        "Gelu",
    ),
    "gelu by tanh": (
        """h = Mul(x, half) q = Pow(x, three) a = Mul(q, small) b = Add(x, a) c = Mul(b, ratio) t = Tanh(c)
           e = Add(t, one) f = Mul(h, e) y = MatMul(f, w)""",
        "FastGelu",
    ),
    "quick gelu": ("a = Mul(x, quick) b = Sigmoid(a) f = Mul(x, b) y = MatMul(f, w)", "QuickGelu"),
    "attention scores": (
        """t = Transpose<perm = [0, 2, 1]>(x) a = MatMul(x, t) b = Div(a, two) y = Softmax<axis = -1>(b)""",
        "FusedMatMul",
    ),
}

CONSTANTS = """<float two = {2.0}, float three = {3.0}, float eps = {1e-5}, float one = {1.0}, float half = {0.5},
    float root = {1.4142135}, float small = {0.044715}, float ratio = {0.7978846},
    float quick = {1.702}, float[8] gamma = {1, 2, 3, 4, 5, 6, 7, 8}, float[8] beta = {1, 1, 2, 2, 3, 3, 4, 4},
    float[8] ones = {1, 1, 1, 1, 1, 1, 1, 1}, float[8] zeros = {0, 0, 0, 0, 0, 0, 0, 0},
    float[8, 2] w = {1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7, 8}>"""


def runtime_operators(model: ir.Model, folder: Path) -> Counter[str]:
    """The operators that a default session runs."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    options.log_severity_level = 4
    data = ir.to_proto(model).SerializeToString()
    onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return Counter(node.op_type for node in onnx.load(folder / "optimized.onnx").graph.node)


@pytest.mark.parametrize("preset", ["O1", "O2"])
@pytest.mark.parametrize("form", list(FORMS))
def test_presets_preserve_fusions_of_onnxruntime(form: str, preset: str, tmp_path: Path) -> None:
    body, fused = FORMS[form]
    text = f"g (float[B, 4, 8] x) => (float[B, 4, K] y) {CONSTANTS} {{ {body} }}"
    before = runtime_operators(parse(text, opset=14), tmp_path)
    assert before[fused], f"the runtime does not fuse this form: {dict(before)}"
    model = parse(text, opset=14)
    run_pipeline(model, preset)
    after = runtime_operators(model, tmp_path)
    assert after[fused] == before[fused]
    assert after.total() <= before.total()


def test_masks_keep_the_form_that_onnxruntime_recognizes() -> None:
    model = parse(
        """g (int64[B, S] mask, float[B, 2, S, S] x) => (float[B, 2, S, S] y) <float one = {1.0}, float c = {-10000.0}> {
            k = Constant<value_ints = [1]>() l = Constant<value_ints = [2]>()
            a = Unsqueeze(mask, k) b = Unsqueeze(a, l) d = Cast<to = 1>(b) e = Sub(one, d) f = Mul(e, c) y = Add(x, f)
        }"""
    )
    run_pipeline(model, "O2")
    assert sum(node.op_type == "Unsqueeze" for node in model.graph) == 2


@pytest.mark.parametrize(
    ("opset", "options", "operator"),
    [
        (17, {}, "SimplifiedLayerNormalization"),
        (17, {"portable": True}, None),
        (17, {"target_opset": 23}, "RMSNormalization"),
        (23, {}, "RMSNormalization"),
    ],
)
def test_the_checker_rejects_only_the_operator_of_onnxruntime(
    opset: int, options: dict[str, Any], operator: str | None, tmp_path: Path
) -> None:
    root = ROOT if opset < 18 else ROOT.replace("<axes = [-1]>(p)", "(p, last)")
    constants = (
        CONSTANTS if opset < 18 else CONSTANTS.replace("<float two", "<int64[1] last = {-1}, float two")
    )
    text = (
        f"g (float[B, 4, 8] x) => (float[B, 4, 8] y) {constants} {{ {root} n = Div(x, s) y = Mul(n, gamma) }}"
    )
    result = graphopt.optimize(parse(text, opset=opset), pipeline="O3", **options).model
    found = {node.op_type for node in result.graph} & {"SimplifiedLayerNormalization", "RMSNormalization"}
    assert found == ({operator} if operator else set())
    if operator == "SimplifiedLayerNormalization":
        with pytest.raises(onnx.checker.ValidationError, match="No Op registered for Simplified"):
            onnx.checker.check_model(ir.to_proto(result))
    else:
        onnx.checker.check_model(ir.to_proto(result), full_check=True)
    assert runtime_operators(result, tmp_path).keys() & {"SimplifiedLayerNormalization", "RMSNormalization"}
