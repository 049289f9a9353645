"""Hints on values that prevent a pattern because they have other readers."""

from __future__ import annotations

from graphopt.rewrite.neighborhood import sharing_hint
from tests.model_testing import parse


def test_the_readers_of_a_shared_value_are_named() -> None:
    model = parse("g (float[N] x) => (float[N] y, float[N] z) { a = Relu(x)  y = Neg(a)  z = Abs(a) }")
    shared, returned, _ = (node.outputs[0] for node in model.graph)
    assert sharing_hint(shared) == "it is read by Neg(y), Abs(z): let only one of them read it"
    assert sharing_hint(returned) == "the graph returns 'y': remove that output"
    assert sharing_hint(model.graph.inputs[0]) is None
