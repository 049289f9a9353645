"""The pass constant-propagation."""

from __future__ import annotations

import numpy as np

from graphopt import ir
from tests.model_testing import ops, parse, run_pipeline


def test_only_short_loops_over_constants_are_folded() -> None:
    text = """g (float[2] x) => (float[2] y)
    <int64 n = {%d}, bool go = {1}, float[2] a = {1.0, 2.0}, float[1] k = {2.0}> {
        b = Loop (n, go, a) <
            body = body (int64 i, bool c, float[2] v) => (bool d, float[2] w) { d = Identity(c) w = Mul(v, k) }
        >
        y = Add(x, b)
    }"""
    short, long = parse(text % 3), parse(text % 200_000_000)
    run_pipeline(short, "constant-propagation")
    run_pipeline(long, "constant-propagation")
    assert ops(short) == ["Add"]
    ir.validate(short)  # the body of the removed node no longer reads values
    folded = ir.constant_of(short.graph[0].inputs[1])
    assert folded is not None and folded.numpy().tolist() == [8.0, 16.0]
    assert ops(long) == ["Loop", "Add"]


def test_byte_limit_and_overridable_initializers_are_respected() -> None:
    model = parse(
        """g (float[N] x, float[1] w) => (float[N] y, float[1024,1024] big)
        <float[1] w = {2.0}, float[1] k = {3.0}, int64[2] shape = {1024, 1024}> {
            a = Add(w, k)
            b = Add(k, k)
            c = Mul(a, b)
            y = Mul(x, c)
            big = Expand(k, shape)
        }"""
    )
    run_pipeline(model, "constant-propagation,dce")
    assert ops(model) == ["Add", "Mul", "Mul", "Expand"]
    folded = [ir.constant_of(value) for value in model.graph.node(1).inputs]
    assert any(tensor is not None and np.array_equal(tensor.numpy(), [6.0]) for tensor in folded)
