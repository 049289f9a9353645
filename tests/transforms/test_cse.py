"""The pass cse."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest

from graphopt import ir
from tests.model_testing import ops, parse, run_pipeline


def test_equal_nodes_are_merged() -> None:
    model = parse(
        """g (float[N] x, float[N] z) => (float[N] y) {
            a = Add(x, z)
            b = Add(z, x)
            c = LeakyRelu<alpha = 0.0>(a)
            d = LeakyRelu<alpha = -0.0>(b)
            e = Sub(x, z)
            f = Sub(z, x)
            g1 = Mul(c, d)
            h = Mul(e, f)
            y = Add(g1, h)
        }"""
    )
    run_pipeline(model, "cse")
    assert ops(model).count("Add") == 2  # a and b merged; y
    assert ops(model).count("LeakyRelu") == 2  # 0.0 is not -0.0
    assert ops(model).count("Sub") == 2


def test_random_nodes_and_unknown_domains_are_not_merged() -> None:
    model = parse(
        """g (float[4] x) => (float[4] y) {
            a = RandomNormalLike(x)
            b = RandomNormalLike(x)
            c = custom.Thing(x)
            d = custom.Thing(x)
            e = com.microsoft.Thing(x)
            f = com.microsoft.Thing(x)
            g1 = com.microsoft.Gelu(x)
            h = com.microsoft.Gelu(x)
            y = Sum(a, b, c, d, e, f, g1, h)
        }""",
        domains=', "custom" : 1, "com.microsoft" : 1',
    )
    run_pipeline(model, "cse")
    assert ops(model) == [*["RandomNormalLike"] * 2, *["Thing"] * 4, "Gelu", "Sum"]


@pytest.mark.parametrize("domain", ["com.microsoft", "own"])
def test_random_functions_are_neither_merged_nor_folded(domain: str) -> None:
    model = parse(
        f"""<ir_version: 8, opset_import: ["" : 17, "{domain}" : 1]>
        g (float[4] x) => (float[4] y, float[4] z) <float[4] c = {{1.0, 2.0, 3.0, 4.0}}> {{
            a = {domain}.Foo(x)
            b = {domain}.Foo(x)
            d = {domain}.Foo(c)
            y = Sub(a, b)
            z = Neg(d)
        }}
        <domain: "{domain}", opset_import: ["" : 17]>
        Foo (v) => (w) {{ w = RandomUniformLike(v) }}"""
    )
    run_pipeline(model, "O2")
    assert ops(model) == ["Foo", "Foo", "Foo", "Sub", "Neg"]


def test_casts_before_casts_are_not_merged() -> None:
    model = parse(
        """g (int16[N] x) => (uint8[N] y, int64[N] z) {
            a = Cast<to = 10>(x) y = Cast<to = 2>(a) b = Cast<to = 10>(x) z = Cast<to = 7>(b)
        }"""
    )
    run_pipeline(model, "cse")
    assert ops(model) == ["Cast"] * 4


@pytest.mark.parametrize(
    "body",
    [
        "t = Reshape(x, q) y = Identity(t) s = Shape(t)",
        "y = Reshape(x, q) t = Reshape(x, q) s = Shape(t)",
        "t = Reshape(x, q) y = Reshape(x, q) s = Shape(t)",
    ],
)
def test_wrong_output_type_does_not_affect_other_values(body: str) -> None:
    model = parse(f"g (float[6] x, int64[2] q) => (float[7, 7] y, int64[2] s) {{ {body} }}")
    run_pipeline(model, "O2")
    session = onnxruntime.InferenceSession(ir.to_bytes(model), providers=["CPUExecutionProvider"])
    _, shape = session.run(None, {"x": np.zeros(6, np.float32), "q": np.array([3, 2])})
    assert shape.tolist() == [3, 2]


def test_function_with_the_name_of_a_kernel_has_the_facts_of_the_kernel() -> None:
    model = parse(
        """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        g (float[2, 3] x) => (int64[2] s) { y = com.microsoft.Gelu(x) s = Shape(y) }
        <domain: "com.microsoft", opset_import: ["" : 17]>
        Gelu (v) => (w) { w = Transpose(v) }"""
    )
    run_pipeline(model, "O2")
    session = onnxruntime.InferenceSession(ir.to_bytes(model), providers=["CPUExecutionProvider"])
    assert session.run(None, {"x": np.zeros((2, 3), np.float32)})[0].tolist() == [2, 3]


def test_both_names_stay_if_both_are_outputs() -> None:
    model = parse("g (float[N] x) => (float[N] y, float[N] z) { y = Relu(x) z = Relu(x) }")
    run_pipeline(model, "cse")
    assert [value.name for value in model.graph.outputs] == ["y", "z"]
    assert ops(model) == ["Relu", "Relu"]


def test_body_reuses_an_outer_value() -> None:
    model = parse(
        """g (float[N] x, bool c) => (float[N] y, float[N] a) {
            a = Exp(x)
            y = If (c) <
                then_branch = t () => (float[N] t1) { t0 = Exp(x) t1 = Neg(t0) },
                else_branch = e () => (float[N] e1) { e1 = Abs(x) }
            >
        }"""
    )
    run_pipeline(model, "cse")
    assert sum(node.op_type == "Exp" for node in ir.walk_nodes(model.graph)) == 1


@pytest.mark.parametrize(("scale", "merged"), [("0.5", True), ("0.3", False)])
def test_merging_never_leaves_two_pairs_that_onnxruntime_makes_one(scale: str, merged: bool) -> None:
    model = parse(f"""
        g (float[N] x) => (float[N] y, float[N] w)
        <float s = {{0.5}}, float s2 = {{{scale}}}, uint8 z = {{128}}>
        {{
            q = QuantizeLinear(x, s, z)
            d = DequantizeLinear(q, s, z)
            p = QuantizeLinear(d, s2, z)
            r = QuantizeLinear(d, s2, z)
            y = DequantizeLinear(p, s2, z)
            w = DequantizeLinear(r, s2, z)
        }}
    """)
    run_pipeline(model, "cse")
    assert ops(model).count("QuantizeLinear") == (2 if merged else 3)


def test_values_with_equal_known_contents_are_merged() -> None:
    model = parse(
        """g (float[N,M] x, float[M,K] w, float[N,K] z) => (int64[2] s, int64[1] t, int64[2] u)
        <int64[1] zero = {0}, int64[1] one = {1}> {
            p = MatMul(x, w)
            r = Relu(p)
            s0 = Shape(r)
            n = Gather(s0, zero)
            k = Gather(s0, one)
            joined = Concat<axis = 0>(n, k)
            turned = Concat<axis = 0>(k, n)
            s1 = Shape(z)
            s = Neg(s0)
            t = Neg(n)
            a = Add(joined, s1)
            u = Add(a, turned)
        }"""
    )
    run_pipeline(model, "cse,dce")
    assert ops(model).count("Shape") == 1  # r and z have one shape
    assert ops(model).count("Concat") == 1  # joined is that shape, turned is another
