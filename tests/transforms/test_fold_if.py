"""The pass fold-if."""

from __future__ import annotations

import onnx
import pytest

from graphopt import ir
from tests.model_testing import ops, parse, run_pipeline


@pytest.mark.parametrize(("condition", "left"), [(1, "Neg"), (0, "Abs")])
def test_taken_branch_is_inlined_with_unique_names(condition: int, left: str) -> None:
    model = parse(
        f"""g (float[N] x) => (float[N] y) <bool c = {{{condition}}}> {{
            a = Exp(x)
            b = If (c) <
                then_branch = t () => (float[N] r) <float[1] k = {{3.0}}> {{ s = Neg(a) r = Add(s, k) }},
                else_branch = e () => (float[N] r) <float[1] k = {{4.0}}> {{ s = Abs(a) r = Mul(s, k) }}
            >
            y = Relu(b)
        }}"""
    )
    run_pipeline(model, "fold-if,dce")
    assert ops(model) == ["Exp", left, "Add" if condition else "Mul", "Relu"]
    names = [output.name for node in model.graph for output in node.outputs]
    assert len(set(names)) == len(names)
    onnx.checker.check_model(ir.to_proto(model), full_check=True)


def test_negated_condition_swaps_the_branches() -> None:
    model = parse(
        """g (float[N] x, bool c) => (float[N] y) {
            d = Not(c)
            y = If (d) <
                then_branch = t () => (float[N] r) { r = Neg(x) },
                else_branch = e () => (float[N] r2) { r2 = Abs(x) }
            >
        }"""
    )
    run_pipeline(model, "fold-if,dce")
    assert ops(model) == ["If"]
    (branch,) = model.graph
    assert branch.inputs[0].name == "c"
    assert [node.op_type for node in branch.attributes["then_branch"].as_graph()] == ["Abs"]
    assert [node.op_type for node in branch.attributes["else_branch"].as_graph()] == ["Neg"]
