"""Grouping a model with groups again gives the same groups."""

from __future__ import annotations

import onnx
import pytest
from onnx import TensorProto, helper, inliner

from graphopt import ir
from graphopt.context import Options
from graphopt.ops import graphopt_operators
from graphopt.optimization_attempt import Attempt
from graphopt.passes.pipelines import make_pipeline
from tests.model_testing import parse

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

#: The group of ``late`` begins first and ends last; ``p`` and ``q`` are one function, whose second copy needs names
#: like those of ``r``; nodes inside and outside of groups read the constant ``rows``.
NAMES = """g (float[B, 6, 8] x, float[B, 6, 8] y, float[8, 8] w) => (float[B, 6, 8] late, float[B, C] p, float[B, C] q,
    float[B, 6, 8] r, float[B, C] m) {
    [early] a = Tanh(x)
    [k_1] b = Sigmoid(y)
    [k_2] c = Exp(b)
    [k_3] r = Neg(c)
    rows = Constant <value = int64[2] {0, -1}> ()
    mm = MatMul(y, w)
    [flat] m = Reshape(mm, rows)
    [k] d = Abs(x)
    [l] e = Sqrt(d)
    [s] e2 = Reshape(e, rows)
    [t] p = Exp(e2)
    [n] f = Abs(mm)
    [o] h = Sqrt(f)
    [u] h2 = Reshape(h, rows)
    [v] q = Exp(h2)
    [z] late = Mul(a, mm)
}"""

#: A group returns a value that it also reads, with an unverified declaration.
DECLARED = """g (float[B, 8] x, int64[2] shape) => (float[4, 16] u, float[P, Q] y) {
    r = Reshape(x, shape)
    u = Sin(r)
    y = Exp(u)
}"""

#: A group reads a constant that is inferred from a shape.
FROM_SHAPE = """g (float[B, 2] x, float[6, 8] w) => (float[B, 2] y) {
    s = Shape(w)
    six = Constant <value_int = 6>()
    c = Equal(s, six)
    a = Sin(x)
    b = Where(c, a, x)
    y = Exp(b)
}"""

#: The body of the loop reads a constant of the outer graph, which its group copies.
CAPTURED = """g (float[B, 8, 8] state, float[S, B, 8] steps, int64[2] size) => (float[B, 8, 8] last, int64[3] longer) {
    axes = Constant <value = int64[1] {-1}>()
    longer = Concat <axis = 0>(size, axes)
    last = Scan <num_scan_inputs = 1, body = step (float[B, 8, 8] s, float[B, 8] e) => (float[B, 8, 8] t) {
        x = Exp(e)
        u = Unsqueeze(x, axes)
        v = Mul(u, s)
        t = Add(v, u)
    }> (state, steps)
}"""


def optimized(data: bytes) -> bytes:
    model = ir.from_proto(onnx.ModelProto.FromString(data))
    Attempt(make_pipeline("native"), Options(kernels=True)).run(model)
    return ir.to_bytes(model)


@pytest.mark.parametrize("text", [ATTENTION, NAMES, DECLARED, FROM_SHAPE, CAPTURED])
def test_regrouping_is_idempotent(text: str) -> None:
    first = optimized(ir.to_bytes(parse(text, ir_version=10)))
    assert onnx.ModelProto.FromString(first).functions, "nothing is grouped"
    second = optimized(first)
    assert second == first


def test_groups_are_independent_of_removed_nodes() -> None:
    function = onnx.FunctionProto.FromString(
        onnx.defs.get_schema("AffineGrid", 20).function_body.SerializeToString()
    )
    function.domain, function.name = "test", "AffineGrid"
    node = helper.make_node("AffineGrid", ["theta", "size"], ["grid"], domain="test", align_corners=1)
    inputs = [
        helper.make_tensor_value_info("theta", TensorProto.FLOAT, [2, 2, 3]),
        helper.make_tensor_value_info("size", TensorProto.INT64, [4]),
    ]
    grid = helper.make_tensor_value_info("grid", TensorProto.FLOAT, [2, 5, 6, 2])
    imports = [helper.make_opsetid("", 20), helper.make_opsetid("test", 1)]
    proto = helper.make_model(
        helper.make_graph([node], "g", inputs, [grid]),
        functions=[function],
        ir_version=10,
        opset_imports=imports,
    )
    first = optimized(inliner.inline_local_functions(proto).SerializeToString())
    assert onnx.ModelProto.FromString(first).functions, "nothing is grouped"
    assert optimized(first) == first


def test_regrouping_is_idempotent_without_domain_imports() -> None:
    node = helper.make_node("BiasGelu", ["x", "bias"], ["y"], domain="com.microsoft")
    floats = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 64]) for name in ("x", "y")]
    bias = helper.make_tensor_value_info("bias", TensorProto.FLOAT, [64])
    graph = helper.make_graph([node], "g", [floats[0], bias], [floats[1]])
    proto = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 17)])
    first = optimized(proto.SerializeToString())
    onnx.checker.check_model(onnx.ModelProto.FromString(first))
    assert onnx.ModelProto.FromString(first).functions, "nothing is grouped"
    assert optimized(first) == first


def test_groups_are_numbered_in_the_order_of_their_calls() -> None:
    model = onnx.ModelProto.FromString(optimized(ir.to_bytes(parse(NAMES, ir_version=10))))
    names = [node.name for node in model.graph.node if node.domain == graphopt_operators.NATIVE_DOMAIN]
    assert names == [f"group_{number}" for number in range(len(names))] and len(names) > 2


def test_small_constants_are_copied_into_groups() -> None:
    functions = onnx.ModelProto.FromString(optimized(ir.to_bytes(parse(ATTENTION, ir_version=10)))).functions
    assert any(node.op_type == "Constant" for function in functions for node in function.node)
