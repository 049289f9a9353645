"""The training and the joint form of ``benchmarks.pipelines_equality``."""

from __future__ import annotations

import pytest

import graphopt
from benchmarks.pipelines_equality import compare, joint_form, table, training_form
from graphopt import ir
from tests.model_testing import ops, parse

MODEL = """g (float[N,2] x) => (float[N,2] y) <float[2,2] w = {1,2,3,4}, float[2] s = {1,2}, float[2] b = {0,1},
    float[2] m = {1,0}, float[2] v = {4,1}> {
    p = MatMul(x, w)
    n = BatchNormalization(p, s, b, m, v)
    y = Relu(n)
}"""


@pytest.mark.parametrize(("opset", "outputs"), [(13, 5), (17, 3)])
def test_the_frozen_training_form_is_equal_to_the_original(opset: int, outputs: int) -> None:
    model = parse(MODEL.replace("y = Relu(n)", "r = Relu(n)\ny = Neg(r)"), opset=opset)
    trains = training_form(model)
    nodes = {node.op_type: node for node in trains.graph}
    assert len(nodes["BatchNormalization"].outputs) == outputs and "Dropout" in nodes
    assert [value.name for value in trains.graph.inputs] == [*"xwsbmv", "ratio"]
    assert ops(model) == ["MatMul", "BatchNormalization", "Relu", "Neg"]
    found = compare("m", trains, "freezing", model)
    assert found.ok and found.comparisons > 0, found.outcome
    other = graphopt.api.copy(model)
    (norm,) = (node for node in other.graph if node.op_type == "BatchNormalization")
    ir.Editor(other).set_attribute(norm, "epsilon", 1.0)
    wrong = compare("m", trains, "freezing", other)
    assert not wrong.ok and wrong.outcome.startswith("VerificationFailed")
    assert "| `freezing` | 2 | 1 |" in table([found, wrong])


def test_the_joint_form_returns_gradients() -> None:
    joint = joint_form(parse(MODEL))
    assert "grad.w" in {value.name for value in joint.graph.outputs}
    assert compare("m", joint, "training").ok
