"""Making native groups of a model that has them gives the same groups."""

from __future__ import annotations

import onnx

from graphopt import ir
from graphopt.context import Options
from graphopt.driver import Job, make_pipeline
from tests.support import parse

ATTENTION = """g (float[B, 6, 8] q, float[B, 6, 8] k, float[B, 6, 8] v, float[B, 6, 6] mask) => (float[B, 6, 8] y, float[B, 6, 8] z)
<float scale = {0.5}, float[8] bias = {1, 2, 3, 4, 5, 6, 7, 8}, float shift = {0.25}> {
    t = Transpose <perm = [0, 2, 1]>(k)
    s = MatMul(q, t)
    u = Mul(s, scale)
    m = Add(u, mask)
    p = Softmax <axis = -1>(m)
    w = MatMul(p, v)
    a = Add(w, bias)
    b = Tanh(a)
    c = Mul(b, shift)
    d = Exp(c)
    e = ReduceMean <axes = [-1], keepdims = 1>(d)
    y = Sub(d, e)
    f = Add(v, bias)
    h = Tanh(f)
    i = Mul(h, shift)
    j = Exp(i)
    l = ReduceMean <axes = [-1], keepdims = 1>(j)
    z = Sub(j, l)
}"""


def optimized(data: bytes) -> bytes:
    model = ir.from_proto(onnx.ModelProto.FromString(data))
    Job(make_pipeline("native"), Options(kernels=True)).run(model)
    return ir.to_bytes(model)


def test_groups_are_the_same_again() -> None:
    first = optimized(ir.to_bytes(parse(ATTENTION, ir_version=10)))
    functions = onnx.ModelProto.FromString(first).functions
    assert functions, "nothing is grouped"
    assert any(node.op_type == "Constant" for function in functions for node in function.node)
    second = optimized(first)
    assert second == first
