"""Passes written for onnx-ir: afterwards facts are inferred again, and guarantees of the user still hold."""

from __future__ import annotations

import graphopt
from graphopt import ir
from graphopt.analysis.symbolic import symbol
from graphopt.context import Options, context_for
from graphopt.passes.onnx_ir import OnnxIrPass
from tests.model_testing import ops, parse

COPY = "tests.cli.broken_passes:Copy"
CUT = """g (float[n,4] x) => (float[m,4] y) <int64[1] one = {1}, int64[1] zero = {0}, int64[1] end = {512}> {
    y = Slice(x, zero, end, zero)
}"""


def test_guaranteed_ranges_hold_after_onnx_ir_passes() -> None:
    ranges = {"n": (1, 512)}
    for pre_passes in ([], [COPY]):
        model, _ = graphopt.optimize(parse(CUT), dim_ranges=ranges, pre_passes=pre_passes, verify=False)
        assert ops(model) == ["Identity"]


def test_onnx_ir_passes_keep_the_time_limit_and_renew_facts() -> None:
    model = parse("g (float[n] x) => (float[n] y) { a = Neg(x)  y = Relu(a) }")
    cx = context_for(model, Options(time_limit=0.0, dim_ranges={"n": (2, 3)}))
    before = cx.facts
    OnnxIrPass(COPY).run(model, cx)
    assert cx.facts is not before and cx.edit.listeners == [cx.facts]
    assert cx.edit.trusts_shape == cx.facts.matches_declaration  # type: ignore[attr-defined]
    assert cx.shape(model.graph.inputs[0]) == (symbol("n", 2, 3),)
    assert cx.shape(model.graph.outputs[0]) is None and cx.budget.unknown


def test_ties_are_searched_again() -> None:
    model = parse("g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { a = Mul(x, w)  y = Add(a, w) }")
    cx = context_for(model)
    weight = model.graph.initializers["w"]
    assert not cx.is_tied(weight)
    other = ir.Value(name="v", const_value=weight.const_value)
    model.graph.register_initializer(other)
    cx.invalidate("test")
    assert cx.is_tied(weight)
