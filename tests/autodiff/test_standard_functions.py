"""Operators without a gradient rule that the standard defines as functions."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest

from graphopt.autodiff.graph_builder import GraphBuilder
from graphopt.autodiff.joint_graph import differentiate
from graphopt.autodiff.primal_node import PrimalNode
from graphopt.autodiff.reverse_mode import vjp_of_standard_function
from graphopt.autodiff.rule_registry import NoGradient
from graphopt.context import context_for
from tests.autodiff.models import check, run
from tests.model_testing import ops, parse

RANDOM = np.random.default_rng(0)


def numbers(*shape: int) -> np.ndarray:
    return np.asarray(RANDOM.standard_normal(shape))


@pytest.mark.parametrize("attributes", ["", "<is_causal=1>", "<scale=0.5, softcap=2.0>"])
def test_attention_is_kept_and_its_scores_are_recomputed(attributes: str) -> None:
    shapes = "double[B,2,S,4] q, double[B,2,T,4] k, double[B,2,T,4] v"
    feeds = {"q": numbers(2, 2, 3, 4), "k": numbers(2, 2, 5, 4), "v": numbers(2, 2, 5, 4)}
    joint = check(
        f"m ({shapes}) => (double[B,2,S,4] y) {{ y = Attention{attributes}(q, k, v) }}", feeds, opset=23
    )
    assert ops(joint).count("Attention") == 1


def test_missing_outputs_of_standard_functions() -> None:
    text = """m (double[B,2,S,4] q, double[B,2,T,4] k, double[B,2,T,4] v) => (double[B,2,S,4] y, double[B,2,S,T] w)
        { y, , , w = Attention(q, k, v) }"""
    check(text, {"q": numbers(1, 2, 3, 4), "k": numbers(1, 2, 2, 4), "v": numbers(1, 2, 2, 4)}, opset=23)


def test_operator_with_another_meaning_in_the_graph_is_refused() -> None:
    model = parse("m (float[N] x) => (float[N] y) { y = SwiGLU(x) }", opset=18)
    with pytest.raises(NoGradient, match="SwiGLU"):
        differentiate(model, ["y"], ["x"])


def test_standard_function_with_changed_operators_is_refused() -> None:
    """The axes of ReduceMean are an attribute up to opset 17, and an input since."""
    for opset, refused in ((17, False), (18, True)):
        model = parse(
            "m (float[N,C] x, int64[N] t) => (float y) { y = NegativeLogLikelihoodLoss(x, t) }", opset=opset
        )
        with context_for(model) as cx:
            (node,), x = list(model.graph), model.graph.inputs[0]
            forward = PrimalNode(node, cx, {x: None}, {node.outputs[0]})
            with pytest.raises(NoGradient) if refused else nullcontext():
                vjp_of_standard_function(GraphBuilder(cx, model.graph), forward, [node.outputs[0]])


def test_rms_normalization() -> None:
    text = "m (float[A,B] x, float[B] s) => (float[A,B] y) { y = RMSNormalization(x, s) }"
    joint = differentiate(parse(text, opset=23), ["y"], ["x"])
    x, dy = numbers(3, 4), numbers(3, 4)
    feeds = {"x": x, "s": np.ones(4), "cotangent.y": dy}
    found = run(joint.model, {name: value.astype(np.float32) for name, value in feeds.items()})["grad.x"]
    inverse = 1 / np.sqrt(np.mean(x * x, -1, keepdims=True) + 1e-5)
    normal = x * inverse
    assert np.allclose(found, inverse * (dy - normal * np.mean(dy * normal, -1, keepdims=True)), atol=1e-5)


@pytest.mark.parametrize("opset", [23, 26])
def test_standard_function_of_older_opset_with_extended_operators(opset: int) -> None:
    text = "m (float[A,B] x, float[B] s) => (float y) { y = RMSNormalization(x, s) }"
    differentiate(parse(text, opset=opset), ["y"], ["x"])
    text = """m (float[B,S,8] x, float[9,2] c, float[9,2] s, int64[B,S] at) => (float y)
        { y = RotaryEmbedding<num_heads=2>(x, c, s, at) }"""
    joint = differentiate(parse(text, opset=opset), ["y"], ["c"])
    assert ops(joint.model).count("RotaryEmbedding") == 1
