"""Estimates of the work of a model, without running it."""

from __future__ import annotations

from graphopt.analysis.cost import result_bytes
from tests.model_testing import parse


def test_result_bytes_count_dynamic_dims_as_16() -> None:
    model = parse("g (float[N, 2] x) => (float[N, 2] y) { a = Neg(x) y = Abs(a) }")
    assert result_bytes(model) == 2 * 16 * 2 * 4


def test_results_that_are_huge_inside_a_body_count() -> None:
    model = parse(
        "g (float[2] x, bool c) => (float[2] y) <float k = {1.0}, int64[2] s = {50000, 50000}> {"
        " y = If(c)<then_branch = t () => (float[2] a) { e = Expand(k, s) r = ReduceSum<keepdims = 0>(e)"
        " a = Add(x, r) }, else_branch = f () => (float[2] b) { b = Neg(x) }> }"
    )
    assert result_bytes(model) > 50_000 * 50_000 * 4


def test_unknown_results_count_as_0_bytes() -> None:
    model = parse(
        "g (float[2] x) => (float[2] y) { a = vendor.Op(x) y = Add(x, x) }", domains=', "vendor" : 1'
    )
    assert result_bytes(model) == 8
