"""Operators and values with onnxruntime's blocked layout."""

from __future__ import annotations

import pytest

from graphopt import ir
from graphopt.fusion.blocked_layout import adjacent_convolution, destinations, sources
from tests.model_testing import parse


def nodes_of(body: str) -> list[ir.Node]:
    inputs = "float[1,8,9,9] x, float[8,8,1,1] w, float[1,8,9,9] z"
    return list(parse(f"g ({inputs}) => (float[A,B,C,D] y) {{ {body} }}").graph)


def test_adjacent_convolution_is_found() -> None:
    conv, first, second = nodes_of("c = Conv <kernel_shape = [1,1]> (x, w) a = Abs(c) y = Exp(a)")
    assert "Conv" in str(adjacent_convolution([first, second]))
    assert adjacent_convolution([second]) is None
    assert adjacent_convolution([conv, first, second]) is None  # a member is not adjacent
    first, _ = nodes_of("a = Abs(x) y = MaxPool <kernel_shape = [1,1]> (a)")
    assert "MaxPool" in str(adjacent_convolution([first]))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("y = Relu(x)", [None]),
        ("a = Abs(x) y = Relu(a)", ["Abs"]),
        ("a = Conv(x, w) b = Relu(a) y = Add(b, z)", ["Conv", None]),
        ("a = Conv(x, w) b = Exp(z) y = Concat <axis = 1> (a, b)", ["Conv", "Exp"]),
        ("a = Conv(x, w) s = Sigmoid(a) y = Mul(a, s)", ["Conv"]),
        ("a = Conv(x, w) y = Transpose(a)", ["Transpose"]),
        ("a = my.own.Relu(x) y = Relu(a)", ["Relu"]),
    ],
)
def test_sources_of_a_layout(body: str, expected: list[str | None]) -> None:
    found = sources(nodes_of(body)[-1].outputs[0])
    assert found is not None
    assert sorted(str(node and node.op_type) for node in found) == sorted(map(str, expected))


def test_destinations_of_a_layout() -> None:
    first, *_ = nodes_of("a = Exp(x) b = Relu(a) c = Conv(b, w) d = Concat <axis = 1> (b, z) y = Add(c, d)")
    found = destinations(first.outputs[0])
    assert found is not None and sorted(node.op_type for node in found if node) == ["Concat", "Conv"]


def test_long_chains_have_no_answer() -> None:
    nodes = nodes_of(
        "a0 = Exp(x) " + " ".join(f"a{i} = Relu(a{i - 1})" for i in range(1, 99)) + " y = Abs(a98)"
    )
    assert destinations(nodes[0].outputs[0]) is None and sources(nodes[-1].inputs[0]) is None
