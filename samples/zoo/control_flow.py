"""If and Loop: a condition that is constant, one that depends on data, and a loop that collects its steps."""

from __future__ import annotations

import numpy as np
import onnx

from zoo.writer import BOOL, FLOAT, INT64, GraphWriter

WIDTH = 8


def control_flow() -> onnx.ModelProto:
    """h₀ = x or x + 1 (constant condition); hᵢ₊₁ = tanh(hᵢ·W + x), n times; then scaled or negated."""
    w = GraphWriter("control_flow", seed=3)
    x = w.input("x", FLOAT, ["batch", WIDTH])
    n = w.input("n", INT64, [])
    w.output("y", FLOAT, ["batch", WIDTH])
    w.output("steps", FLOAT, ["n_steps", "batch", WIDTH])

    h = _constant_if(w, x)
    weight = w.weight("cell.weight", w.normal(WIDTH, WIDTH))
    h = _loop(w, x, n, h, weight)
    _data_if(w, h)
    return w.model(opset=16, ir_version=8, producer="pytorch")


def _constant_if(w: GraphWriter, x: str) -> str:
    """`if training:` with the flag exported as a constant."""
    training = w.constant(np.array(False), np.bool_)
    then, orelse = w.body("then_training"), w.body("else_training")
    noise = then.op("Add", x, then.constant(1.0))
    then.output(noise, FLOAT, ["batch", WIDTH])
    same = orelse.op("Identity", x)
    orelse.output(same, FLOAT, ["batch", WIDTH])
    return w.op("If", training, then_branch=then.graph(), else_branch=orelse.graph())


def _loop(w: GraphWriter, x: str, n: str, h: str, weight: str) -> str:
    """The body reads `x` and `weight` of the outer graph, carries its state and stacks it as `steps`."""
    body = w.body("loop_body")
    body.input("i", INT64, [])
    body.input("keep_going", BOOL, [])
    state = body.input("state", FLOAT, ["batch", WIDTH])
    keep = body.op("Identity", "keep_going")
    scaled = body.op("Mul", body.op("MatMul", state, weight), body.constant(1.0))
    following = body.op("Tanh", body.op("Add", scaled, x))
    step = body.op("Identity", following)
    body.output(keep, BOOL, [])
    body.output(following, FLOAT, ["batch", WIDTH])
    body.output(step, FLOAT, ["batch", WIDTH])
    forever = w.constant(np.array(True), np.bool_)
    return w.ops("Loop", n, forever, h, results=[None, "steps"], body=body.graph())[0]


def _data_if(w: GraphWriter, h: str) -> None:
    """`if h.sum() > 0:` where each branch has work of its own and reads `h`."""
    positive = w.op("Greater", w.op("ReduceSum", h, keepdims=0), w.constant(0.0))
    then, orelse = w.body("then_positive"), w.body("else_positive")
    scaled = then.op("Mul", h, then.op("Add", then.constant(1.0), then.constant(1.0)))
    then.output(scaled, FLOAT, ["batch", WIDTH])
    negated = orelse.op("Neg", orelse.op("Cast", h, to=FLOAT))
    orelse.output(negated, FLOAT, ["batch", WIDTH])
    w.op("If", positive, then_branch=then.graph(), else_branch=orelse.graph(), result="y")
