"""Limits on time and memory: remaining nodes are unchanged, and the report lists them."""

from __future__ import annotations

from pathlib import Path

import pytest

import graphopt
from graphopt import config, ir
from graphopt.context import Options, context_for
from graphopt.make_pass_options import make_options
from graphopt.util.resource_budget import Budget
from tests.model_testing import ops, parse

FOLDABLE = """g (float[2] x) => (float[2] y) <float[2] k = {1.0, 4.0}>
    { a = Sqrt(k) b = Exp(a) c = Add(x, b) d = Neg(c) e = Neg(d) y = Identity(e) }"""


def test_time_limit_ends_folding_only() -> None:
    model, report = graphopt.optimize(parse(FOLDABLE), time_limit=0)
    assert "Sqrt" in ops(model) and report.verdict is not None and report.verdict.ok
    assert any(remark.startswith("--time-limit 0 was reached: ") for remark in report.remarks)
    model, report = graphopt.optimize(parse(FOLDABLE))
    assert "Sqrt" not in ops(model) and not report.remarks


def test_values_without_inference_are_unknown() -> None:
    model = parse(FOLDABLE)
    cx = context_for(model, Options(time_limit=0))
    cx.facts.infer_all()
    assert cx.shape(model.graph.outputs[0]) is None
    assert cx.shape(model.graph.inputs[0]) == (2,)
    assert cx.budget.unknown == len(model.graph)


def test_results_too_large_together_are_computed_separately() -> None:
    """y and z each require 4 KiB of intermediate results, and have small results; w requires 16 KiB."""
    text = """g (float[1] x) => (float[1] y, float[1] z, float[1] w)
        <float k = {1.0}, int64[1] s = {1024}, int64[1] t = {4096}> {
            a = Expand(k, s) b = ReduceSum(a) y = Add(x, b)
            c = Expand(k, s) d = Neg(c) e = ReduceSum(d) z = Sub(x, e)
            f = Expand(k, t) h = ReduceMax(f) w = Mul(x, h)
        }"""
    model, report = graphopt.optimize(parse(text), pipeline="constant-propagation,dce", memory_limit=9000)
    assert ops(model).count("Expand") == 1 and "ReduceMax" in ops(model) and "ReduceSum" not in ops(model)
    assert report.remarks == ["1 node not folded: that would take more than --memory-limit, 9.00 kB"]
    model, _ = graphopt.optimize(parse(text), pipeline="constant-propagation,dce")
    assert "Expand" not in ops(model)


def test_time_is_counted_once_where_blocks_are_nested() -> None:
    budget = Budget(seconds=1000)
    with budget:
        with budget:
            inner = budget.left
        outer = budget.left
    assert inner is not None and outer is not None and budget.left is not None
    assert 0 < budget.left <= outer <= inner < 1000 and not budget.over
    assert Budget().left is None and not Budget().over and Budget(seconds=0).over


def test_the_settings_reach_the_passes(tmp_path: Path) -> None:
    (tmp_path / "graphopt.toml").write_text('time-limit = 5\nmemory-limit = "1GiB"\n')
    options = make_options(config.load({}, tmp_path))
    assert (options.time_limit, options.memory_limit) == (5.0, 1 << 30)
    cx = context_for(parse(FOLDABLE), options)
    assert (cx.budget.seconds, cx.budget.nbytes) == (5.0, 1 << 30) and cx.evaluator.budget is cx.budget


@pytest.mark.parametrize("value", ["-1", "soon"])
def test_limits_that_are_none(value: str, tmp_path: Path) -> None:
    with pytest.raises(graphopt.errors.UsageError):
        config.load({}, tmp_path, assignments=[f"time-limit={value}"])


def test_slow_session_is_stopped() -> None:
    """The time limit is reached after the first of many products."""
    text = "g (float x) => (float y) <float k = {1.0}, int64[2] s = {600, 600}> { m0 = Expand(k, s) "
    text += " ".join(f"m{i + 1} = MatMul(m{i}, m0)" for i in range(300))
    text += " r = ReduceSum<keepdims = 0>(m300) y = Add(x, r) }"
    model = parse(text)
    cx = context_for(model, Options(time_limit=0.05))
    nodes = [node for node in model.graph if node.op_type != "Add"]
    refused: list[str] = []
    results = cx.evaluator.evaluate(nodes, nodes[-1].outputs, refused=lambda node, why: refused.append(why))
    assert not results and "the time is up" in refused
    assert ir.label(nodes[0]) in cx.budget.unfolded
