"""Outputs whose last computing operator is bounded: only its absolute rounding error is allowed.

Exported text detectors end like this: Conv, BatchNormalization, Relu, Conv with biases far below zero, Sigmoid,
and an operator that only moves elements.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.helper as oh
import onnx.numpy_helper
import pytest

import graphopt
from graphopt import ir
from graphopt.ops import traits
from graphopt.verification.candidate_comparison import absolute_rounding
from graphopt.verification.verifier import Verifier
from tests.model_testing import parse

CHANNELS = 4
#: Operators behind the Sigmoid: name, inputs besides the data, attributes.
TAILS: dict[str, tuple[str, list[str], dict[str, Any]]] = {
    "identity": ("Identity", [], {}),
    "squeeze": ("Squeeze", ["one"], {}),
    "reshape": ("Reshape", ["flat"], {}),
    "transpose": ("Transpose", [], {"perm": [0, 2, 3, 1]}),
}


def detector(tail: str | None = "identity", **changes: Any) -> onnx.ModelProto:
    """A detector's head; ``changes`` replace weights, ``epsilon``, ``order`` or the ``axis`` of the last operator."""
    random = np.random.default_rng(5)
    weights: dict[str, Any] = {
        "w": random.standard_normal((CHANNELS, 3, 3, 3)).astype(np.float32) / 3,
        "scale": random.uniform(0.5, 2, CHANNELS).astype(np.float32),
        "shift": random.standard_normal(CHANNELS).astype(np.float32),
        "mean": random.standard_normal(CHANNELS).astype(np.float32),
        "var": random.uniform(0.02, 2, CHANNELS).astype(np.float32),
        "v": random.standard_normal((1, CHANNELS, 1, 1)).astype(np.float32),
        "bias": random.uniform(-17, -10, 1).astype(np.float32),
        "one": np.array([1]),
        "flat": np.array([0, -1]),
    }
    epsilon = changes.pop("epsilon", 1e-5)
    last = "y" if tail is None else "s"
    nodes = [
        oh.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        oh.make_node("BatchNormalization", ["a", "scale", "shift", "mean", "var"], ["b"], epsilon=epsilon),
        oh.make_node("Relu", ["b"], ["c"]),
        oh.make_node("Conv", ["c", "v", "bias"], ["d"]),
        oh.make_node("Sigmoid", ["d"], [last]),
    ]
    if tail is not None:
        op_type, inputs, attributes = TAILS[tail]
        nodes.append(oh.make_node(op_type, ["s", *inputs], ["y"], **attributes))
    weights |= changes
    x = oh.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 3, "H", "W"])
    y = oh.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    read = {name for node in nodes for name in node.input}
    initializers = [
        onnx.numpy_helper.from_array(array, name) for name, array in weights.items() if name in read
    ]
    graph = oh.make_graph(nodes, "detector", [x], [y], initializers)
    return oh.make_model(graph, opset_imports=[oh.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("tail", [None, *TAILS])
def test_correct_rewrites_before_a_moved_sigmoid_are_kept(tail: str | None) -> None:
    result = graphopt.optimize(ir.from_proto(detector(tail)))
    assert result.report.dropped == []
    assert "BatchNormalization" not in [node.op_type for node in result.model.graph]
    assert result.verdict is not None and not [row for row in result.verdict.rows if row.excused]


def _weights() -> dict[str, Any]:
    return {t.name: onnx.numpy_helper.to_array(t) for t in detector().graph.initializer}


@pytest.mark.parametrize(
    ("fault", "changes"),
    [
        ("dropped bias", {"bias": np.zeros(1, np.float32)}),
        ("wrong epsilon", {"epsilon": 1e-3}),
        ("swapped operands", {"mean": _weights()["shift"], "shift": _weights()["mean"]}),
        ("wrong axis", {"w": _weights()["w"].swapaxes(2, 3)}),
        ("slice off by one", {"scale": np.roll(_weights()["scale"], 1)}),
        ("bias off by a hundredth", {"bias": _weights()["bias"] + np.float32(0.01)}),
    ],
)
def test_wrong_rewrites_before_a_moved_sigmoid_are_found(fault: str, changes: dict[str, Any]) -> None:
    with Verifier(detector().SerializeToString(), empty=False) as verifier:
        assert verifier.verify(detector().SerializeToString()).ok
        assert not verifier.verify(detector(**changes).SerializeToString()).ok, fault


@pytest.mark.parametrize(
    ("steps", "bounded"),
    [
        ("a = Sigmoid(x) y = Identity(a)", True),
        ("a = Tanh(x) b = Transpose(a) y = Slice(b, one, two)", True),
        ("a = Sigmoid(x) b = Tanh(x) y = Concat<axis = 0>(a, b)", True),
        ("a = Sigmoid(x) y = Where(c, a, zero)", True),
        ("a = Sigmoid(x) y = Concat<axis = 0>(a, x)", False),
        ("a = Sigmoid(x) y = Add(a, a)", False),
        ("y = Identity(zero)", False),
        ("y = Identity(x)", False),
    ],
)
def test_bounded_operators_are_found_behind_moves(steps: str, bounded: bool) -> None:
    head = "g (float[N, 4] x, bool[N, 4] c) => (float[M, K] y) <float zero = {0.0}, int64[1] one = {1}, int64[1] two = {2}>"
    (output,) = parse(f"{head} {{ {steps} }}").graph.outputs
    assert (absolute_rounding(output, "float32") > 0) is bounded


def test_moves_do_not_round() -> None:
    assert set(traits.MOVES) <= traits.UNROUNDED
