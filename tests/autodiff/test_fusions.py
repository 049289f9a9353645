"""Fused operators have the gradients of their patterns: all cases of rules, and samples under -O3."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from benchmarks.inputs import make_feeds
from graphopt import ir
from graphopt.autodiff.joint_graph import COTANGENT, differentiate
from graphopt.ort import session
from tests.rules import rule_cases
from zoo import SAMPLES

_FLOATS = (np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.float16))
#: Tolerance of gradients by element type, relative to the largest element.
_NEAR = {"float64": 1e-9, "float32": 2e-4, "float16": 2e-2}
#: Cases whose gradients can't be compared, with reasons.
_APART = {
    "attention/causal-masked-then-padding": "scores that a mask hides by -1e31 are lost, all those of a query"
}
#: Operators written by rules that have a gradient rule.
_FUSED = {
    *("BiasGelu", "DynamicQuantizeMatMul", "FastGelu", "FusedConv", "FusedGemm", "FusedMatMul", "Gelu"),
    *("GroupQueryAttention", "MatMulIntegerToFloat", "MultiHeadAttention", "QuickGelu", "RotaryEmbedding"),
    *("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"),
}


def own(model: onnx.ModelProto) -> list[str]:
    """The operators of onnxruntime in the main graph, and the standard's that rules write."""
    kept = ("Attention", "RotaryEmbedding", "Gelu", "LayerNormalization", "RMSNormalization")
    return [node.op_type for node in model.graph.node if node.domain or node.op_type in kept]


def fusing() -> list[Path]:
    """The cases with a fused operator."""
    found = []
    for path in rule_cases.case_files():
        case = (
            None
            if rule_cases.is_near_miss(path) or rule_cases.is_random(path)
            else rule_cases.read_case(path)
        )
        after = None if case is None else case.after
        if case is not None and after is not None and Counter(own(after)) - Counter(own(case.before)):
            found.append(path)
    return found


def gradients(
    model: onnx.ModelProto, feeds: Mapping[str, Any], outputs: Sequence[str], wrt: Sequence[str]
) -> dict[str, np.ndarray]:
    """The gradients by ``wrt``, for random cotangents of ``outputs``."""
    data, random = model.SerializeToString(), np.random.default_rng(0)
    plain = session.run(session.create(data, threads=1), feeds, outputs)
    joint = differentiate(ir.from_proto(onnx.ModelProto.FromString(data)), outputs, wrt)
    given = {
        COTANGENT + name: np.asarray(random.standard_normal(value.shape), value.dtype)
        for name, value in zip(outputs, plain, strict=True)
    }
    running = session.create(ir.to_bytes(joint.model), threads=1)
    found = session.run(running, {**feeds, **given}, list(joint.gradients.values()))
    return dict(zip(joint.gradients, found, strict=True))


def assert_near(found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> None:
    for name, value in expected.items():
        exact, near = value.astype(np.float64), _NEAR[value.dtype.name]
        size = max(1.0, float(np.abs(exact).max(initial=0)))
        np.testing.assert_allclose(found[name], exact, rtol=0, atol=near * size, err_msg=name)


@pytest.mark.parametrize("path", fusing(), ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_gradients_of_fused_operators_equal_those_of_their_patterns(path: Path) -> None:
    if (name := f"{path.parent.name}/{path.stem}") in _APART:
        pytest.skip(_APART[name])
    case = rule_cases.read_case(path)
    assert case.after is not None
    feeds = rule_cases.make_feeds(case, next(rule_cases.bindings_of(case)), "normal")
    names = [output.name for output in case.before.graph.output]
    results = session.run(session.create(case.before.SerializeToString(), threads=1), feeds, names)
    outputs = [
        output for output, value in zip(names, results, strict=True) if value.dtype in _FLOATS and value.size
    ]
    wrt = [name for name, value in feeds.items() if value.dtype in _FLOATS and value.size]
    if not outputs or not wrt:
        pytest.skip("it computes nothing with floating-point numbers")
    assert_near(gradients(case.after, feeds, outputs, wrt), gradients(case.before, feeds, outputs, wrt))


def test_all_fused_operators_occur_in_cases() -> None:
    found = {op for path in fusing() for op in own(rule_cases.read_case(path).after or onnx.ModelProto())}
    assert found >= _FUSED


def with_weights_apart(model: onnx.ModelProto) -> onnx.ModelProto:
    """``model`` with other parameters, all different, so that none are merged."""
    random = np.random.default_rng(0)
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT and tensor.dims:
            value = onnx.numpy_helper.to_array(tensor)
            moved = np.asarray(value + 0.01 * np.abs(random.standard_normal(value.shape)), np.float32)
            tensor.CopyFrom(onnx.numpy_helper.from_array(moved, tensor.name))
    return model


@pytest.mark.parametrize(("name", "fused"), [("transformer", "MultiHeadAttention"), ("cnn", "FusedConv")])
def test_gradients_of_models_are_unchanged_by_optimization(name: str, fused: str) -> None:
    sample = SAMPLES[name]
    model = with_weights_apart(sample.build())
    feeds = make_feeds({"inputs": sample.inputs, "shape_sets": sample.shape_sets}, 0)
    optimized = rule_cases.optimize(model)
    assert fused in own(optimized)
    left = {value.name for value in (*optimized.graph.initializer, *optimized.graph.input)}
    wrt = [tensor.name for tensor in model.graph.initializer if tensor.data_type == onnx.TensorProto.FLOAT]
    wrt = [name for name in [*wrt, *feeds] if name in left and feeds.get(name, np.zeros(1)).dtype in _FLOATS]
    output = model.graph.output[0].name
    assert len(wrt) > 2
    assert_near(gradients(optimized, feeds, [output], wrt), gradients(model, feeds, [output], wrt))
