"""Estimated time of runs."""

from __future__ import annotations

from graphopt.verification.run_cost import RunCost
from tests.ort.build import parse


def test_the_estimate_grows_with_the_sizes() -> None:
    cost = RunCost.of(parse("g (float[B, 512] x, float[512, 512] w) => (y) { y = MatMul(x, w) }"))
    assert cost.operations.__class__ is not int and cost.nodes == 1
    small, large = cost.seconds({"B": 1}), cost.seconds({"B": 1000})
    assert 0 < small < large / 10


def test_bodies_count_once() -> None:
    then = "then_branch = t () => (float[N] a) { a = Exp(x) }"
    otherwise = "else_branch = e () => (float[N] b) { b = Neg(x) }"
    cost = RunCost.of(parse(f"g (bool c, float[N] x) => (y) {{ y = If(c) <{then}, {otherwise}> }}"))
    assert cost.nodes == 3
    assert cost.seconds({"N": 10_000}) > cost.seconds({"N": 1})


def test_sizes_that_depend_on_data_count_as_typical() -> None:
    cost = RunCost.of(parse("g (float[N] x) => (y) { i = NonZero(x) f = Cast<to = 1>(i) y = Exp(f) }"))
    assert cost.seconds({"N": 10}) > 0
