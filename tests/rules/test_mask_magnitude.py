"""No element of a mask or bias exceeds its inferred bound, for any inputs of the model."""

from __future__ import annotations

import math

import onnx
import pytest

from graphopt import ir
from graphopt.api import context_for
from graphopt.rewrite import Match
from graphopt.rules.building_blocks.attention.mask_magnitude import max_magnitude

HEAD = """
<ir_version: 8, opset_import: ["" : 18, "f" : 1]>
g (float[2, 3] x, bool[2, 3] b, int64[2, 3] i, int64[3] at) => (float[r, s] y)
    <float one = {1}, float two = {2}, float low = {-7}, float none = {-inf}, float[3] row = {1, -4, 2}, float odd = {nan}>
{
"""
BOUNDS = {
    "a constant": ("y = Identity(row)", 4),
    "a view of a constant": ("y = Unsqueeze(row, at0)", 4),
    "one number or another": ("y = Where(b, one, low)", 7),
    "infinity": ("y = Where(b, one, none)", math.inf),
    "no number": ("y = Where(b, one, odd)", math.inf),
    "what is given": ("y = Neg(x)", math.inf),
    "truths": ("y = Cast<to = 1>(b)", 1),
    "integers": ("y = Cast<to = 1>(i)", math.inf),
    "what is picked": ("y = Gather(row, at)", 4),
    "what is bounded": ("a = Tanh(x) y = Mul(a, low)", 7),
    "a sum": ("a = Sigmoid(x) y = Add(a, row)", 5),
    "a difference": ("a = Sigmoid(x) y = Sub(a, row)", 5),
    "a product": ("a = Cast<to = 1>(b) c = Sub(one, a) y = Mul(c, low)", 14),
    "the larger": ("a = Cast<to = 1>(b) y = Max(a, low)", 7),
    "a quotient": ("a = Cast<to = 1>(b) y = Div(one, a)", math.inf),
    "the sum of all": ("a = Cast<to = 1>(b) y = ReduceSum(a)", math.inf),
    "what another domain gives": ("a = Cast<to = 1>(b) y = f.Neg(a)", math.inf),
}


@pytest.mark.parametrize(("body", "bound"), BOUNDS.values(), ids=BOUNDS)
def test_upper_bounds_of_magnitudes(body: str, bound: float) -> None:
    text = HEAD.replace("float one", "int64[1] at0 = {0}, float one") + body + "}"
    text += '<domain: "f", opset_import: ["" : 18]> Neg (a) => (b) { b = Exp(a) }'
    model = ir.from_proto(onnx.parser.parse_model(text))
    (output,) = model.graph.outputs
    root = output.producer()
    assert root is not None
    assert max_magnitude(Match("test", root, {}, context_for(model)), output) == bound


def test_long_chains_are_not_followed_to_their_end() -> None:
    steps = " ".join(f"a{n + 1} = Neg(a{n})" for n in range(30))
    model = ir.from_proto(onnx.parser.parse_model(f"{HEAD} a0 = Tanh(x) {steps} y = Neg(a30) }}"))
    (output,) = model.graph.outputs
    root = output.producer()
    assert root is not None
    m = Match("test", root, {}, context_for(model))
    assert max_magnitude(m, output) == math.inf
    assert max_magnitude(m, output, 99) == 1
