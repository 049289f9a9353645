"""The nodes that a replacement computes, beyond the pattern of its rule."""

from __future__ import annotations

from graphopt import ir
from graphopt.rewrite.replaced_nodes import replaced_nodes
from tests.ort.build import parse


def names(model: ir.Model, root: str, nodes: list[str], read: list[str]) -> list[str]:
    by_name = {ir.label(node): node for node in model.graph}
    values = {value.name: value for node in model.graph for value in (*node.inputs, *node.outputs) if value}
    found = replaced_nodes(by_name[root], [by_name[name] for name in nodes], [values[name] for name in read])
    return [ir.label(node) for node in found]


def test_nodes_between_the_root_and_the_operands() -> None:
    model = parse(
        "g (float[4] x, float[4] z) => (float[4] y)"
        "{ [n1] a = Neg(x) [n2] b = Abs(a) [n3] c = Exp(b) [n4] d = Neg(z) [n5] y = Add(c, d) }"
    )
    assert names(model, "n5", ["n5"], ["a", "d"]) == ["n5", "n3", "n2"]
    assert names(model, "n5", ["n5", "n3"], ["c", "z"]) == ["n5", "n3", "n4"]
    assert names(model, "n5", ["n5"], ["y"]) == ["n5", "n3", "n4", "n2", "n1"]


def test_shapes_are_no_operands() -> None:
    model = parse("g (float[4] x) => (int64[1] y) { [n1] a = Neg(x) [n2] s = Shape(a) [n3] y = Abs(s) }")
    assert names(model, "n3", ["n3"], []) == ["n3", "n2"]


def test_the_number_of_nodes_is_limited() -> None:
    chain = " ".join(f"[n{number}] v{number} = Neg(v{number - 1})" for number in range(1, 60))
    model = parse(f"g (float[4] v0) => (float[4] v59) {{ {chain} }}")
    assert names(model, "n59", ["n59"], ["v50"]) == [f"n{number}" for number in range(59, 50, -1)]
    assert names(model, "n59", ["n59"], []) == ["n59"]
