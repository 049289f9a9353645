"""Names in use, and new names."""

from __future__ import annotations

from graphopt import ir
from tests.model_testing import parse


def test_name_suffixes_are_not_repeated_and_names_are_reused() -> None:
    model = parse("g (float x, float x_1) => (float y) { y = Add(x, x_1) }")
    edit = ir.Editor(model)
    name = "x"
    for wanted in ("x_2", "x_3", "x_4"):
        name = edit.fresh_name(name)
        assert name == wanted
    assert edit.fresh_name("x_1") == "x_1_1", "a number in a name of the model is part of the name"
    node = edit.make_node("Neg", [model.graph.inputs[0]], name="n")
    edit.discard(node)
    assert edit.make_node("Neg", [model.graph.inputs[0]], name="n").name == "n"
