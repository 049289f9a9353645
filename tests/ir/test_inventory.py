"""The inventory of a model: its graphs and operators, up to date after every edit."""

from __future__ import annotations

from graphopt import ir
from tests.model_testing import parse

_NESTED = """
g (bool c, float[N] x) => (float[N] y) {
    k = Constant <value = float[1] {2.0}> ()
    y = If (c) <
        then_branch = t () => (float[N] u) { u = Mul(x, k) },
        else_branch = e () => (float[N] v) { v = Neg(x) }
    >
}
"""


def test_inventory_has_graphs_in_order_and_all_operators() -> None:
    model = parse(_NESTED)
    found = ir.Editor(model).inventory
    assert found.graphs == tuple(ir.graphs_of(model)) and len(found.graphs) == 3
    assert found.operators == {"Constant", "If", "Mul", "Neg"}
    assert (found.nodes, found.reported) == (4, ir.count_nodes(model.graph))


def test_inventory_follows_edits() -> None:
    model = parse(_NESTED)
    edit = ir.Editor(model)
    before = edit.inventory
    assert edit.inventory is before
    (node,) = (node for node in model.graph if node.op_type == "If")
    made = edit.make_node("Abs", [node.inputs[0]], name="abs")
    edit.insert_before(node, [made])
    edit.replace(node.outputs[0], made.outputs[0])
    edit.remove_with_bodies(node)
    assert len(before.graphs) == 3
    assert edit.inventory.graphs == (model.graph,)
    assert "If" not in edit.inventory.operators and "Abs" in edit.inventory.operators
