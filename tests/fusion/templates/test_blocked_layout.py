"""Depthwise convolutions beside operators with onnxruntime's blocked layout are left to onnxruntime."""

from __future__ import annotations

import pytest

from graphopt.context import context_for
from graphopt.fusion import template_policy, template_table
from tests.model_testing import parse


@pytest.mark.parametrize(
    ("before", "after", "is_kernel"),
    [
        ("b = Neg(x)", "y = Neg(c)", True),
        ("b = HardSwish(x)", "y = Neg(c)", True),
        ("a = Conv(x, v) b = Neg(a)", "d = Neg(c) y = Conv(d, v)", True),
        ("a = Conv(x, v) s = HardSigmoid(a) b = Mul(a, s)", "y = Neg(c)", False),
        ("b = Concat <axis = 2> (x, x)", "y = Neg(c)", True),
        ("a = Conv(x, v) b = Concat <axis = 2> (a, a)", "y = Neg(c)", False),
        ("b = Neg(x)", "s = HardSigmoid(c) d = Mul(c, s) y = Conv(d, v)", False),
        ("b = Neg(x)", "d = Relu(c) y = Concat <axis = 1> (d, x)", False),
    ],
)
def test_neighbours_in_the_blocked_layout(before: str, after: str, is_kernel: bool) -> None:
    text = f"""
    g (float[1,16,30,30] x) => (float[N,C,H,W] y)
    <float[16,1,3,3] w = {{{",".join(["0.5"] * 144)}}}, float[16,16,1,1] v = {{{",".join(["0.1"] * 256)}}}>
    {{ {before} c = Conv <group = 16> (b, w) {after} }}
    """
    model = parse(text)
    with context_for(model) as cx:
        (node,) = (node for node in model.graph if node.attributes.get("group"))
        (match, *_) = template_table.matches(node, cx)
        assert template_policy.is_faster_as_template(match, cx) is is_kernel
