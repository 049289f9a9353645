"""Changes of uses: the links on both sides agree, and wide nodes cost no more than narrow ones."""

from __future__ import annotations

import onnx_ir
import pytest

from graphopt import ir
from graphopt.api import context_for, optimize
from tests.model_testing import ops, parse

CONCAT = "g (float[N] a, float[N] b) => (float[M] y) { t = Relu(a) y = Concat<axis = 0>(t, b, t, a) }"


def links(node: ir.Node) -> list[tuple[str | None, bool]]:
    """The inputs of ``node``, and whether each value lists the use."""
    return [(value.name, (node, index) in value.uses()) for index, value in enumerate(node.inputs) if value]


def test_replace_moves_every_use_of_a_value() -> None:
    model = parse(CONCAT)
    edit, (relu, concat) = context_for(model).edit, model.graph
    edit.replace(relu.outputs[0], model.graph.inputs[1])
    assert links(concat) == [("b", True), ("b", True), ("b", True), ("a", True)]
    assert not ir.is_read(relu.outputs[0])
    edit.remove(relu)
    assert [use.node for use in model.graph.inputs[0].uses()] == [concat]


def test_keep_excludes_a_reader_and_set_input_changes_one_slot() -> None:
    model = parse(CONCAT)
    edit, (relu, concat), (a, b) = context_for(model).edit, model.graph, model.graph.inputs
    edit.replace(a, b, keep={relu})
    assert relu.inputs == (a,)
    edit.set_input(concat, 0, a)
    assert links(concat) == [("a", True), ("b", True), (relu.outputs[0].name, True), ("b", True)]
    edit.trim_inputs(concat, 1)
    assert links(concat) == [("a", True)]
    assert ir.use_count(b) == 0


def test_a_node_that_is_read_can_not_be_removed() -> None:
    model = parse(CONCAT)
    edit, (relu, concat) = context_for(model).edit, model.graph
    for node in (relu, concat):
        with pytest.raises(ValueError, match="its outputs are read"):
            edit.remove(node)
        assert node.graph is model.graph
        assert all(known for _, known in links(node))


def test_rewriting_wide_nodes_takes_linear_time(monkeypatch) -> None:
    """onnx-ir replaces one input by a pass over all of them: quadratic where a node has 50,000."""
    calls = 0
    replace = onnx_ir.Node.replace_input_with

    def counted(node: ir.Node, index: int, value: ir.Value | None) -> None:
        nonlocal calls
        calls += 1
        replace(node, index, value)

    monkeypatch.setattr(onnx_ir.Node, "replace_input_with", counted)
    width = 300
    terms = " ".join(f"t{i} = Tanh(x)" for i in range(width))
    names = ", ".join(f"t{i}" for i in range(width))
    inner, outer = names.split(", ")[: width // 2], names.split(", ")[width // 2 :]
    for text in (
        f"g (float[N] x) => (float[N] y) {{ {terms} y = Sum({names}) }}",
        f"g (float[N] x) => (float[M] y) {{ {terms} c = Concat<axis = 0>({', '.join(inner)})"
        f" y = Concat<axis = 0>(c, {', '.join(outer)}) }}",
    ):
        result, _ = optimize(parse(text), verify=False)
        assert ops(result).count("Tanh") == 1
        assert calls == 0
