"""The pass canonicalize."""

from __future__ import annotations

from graphopt import ir
from tests.model_testing import parse, run_pipeline


def test_required_empty_inputs_stay() -> None:
    model = parse(
        """g (float[2] x, float low, int64 n) => (float[2] y, float[T,2] r) {
            y = Clip(x, low)
            r = Loop (n) < body = b (int64 i, bool c) => (bool d, float[2] o) { d = Identity(c) o = Exp(x) } >
        }"""
    )
    proto = ir.to_proto(model)
    for node in proto.graph.node:
        node.input.append("")  # which ONNX text can't express
    model = ir.from_proto(proto)
    run_pipeline(model, "canonicalize")
    assert [list(node.input) for node in ir.to_proto(model).graph.node] == [["x", "low"], ["n", ""]]


def test_constants_move_to_the_right() -> None:
    model = parse(
        "g (float[N] x) => (float[N] y) <float[1] c = {2.0}> { a = Mul(c, x) b = Sub(c, a) y = Max(c, b) }"
    )
    run_pipeline(model, "canonicalize")
    read = [[value.name for value in node.inputs if value] for node in model.graph]
    assert read == [["x", "c"], ["c", "a"], ["c", "b"]]  # which of 0.0 and -0.0 is the maximum shows
