"""batch-mm: products of one input become one and a Split, and sums of products one product, where that pays."""

from __future__ import annotations

import math

import numpy as np
import pytest

import graphopt
from graphopt import ir
from graphopt.context import Options
from graphopt.cost import Axis, Costs, Grid
from graphopt.numerics import Numerics
from tests.model_testing import ops, parse, run_pipeline

ALWAYS = "batch-mm{always}"


def numbers(**shapes: tuple[int, ...]) -> str:
    """Declarations of initializers with arbitrary numbers."""
    random = np.random.default_rng(0)
    return ", ".join(
        f"float[{','.join(map(str, shape))}] {name} = "
        f"{{{', '.join(f'{number:.3f}' for number in random.standard_normal(math.prod(shape)))}}}"
        for name, shape in shapes.items()
    )


def batched(model: ir.Model) -> ir.Model:
    """``model`` after the pass, which is verified."""
    return graphopt.optimize(model, pipeline=ALWAYS, strict=True, require_verified=True).model


def weights(model: ir.Model) -> dict[str, tuple[int, ...]]:
    """The initializers of all graphs, with their shapes."""
    return {
        name: tuple(value.shape.numpy())
        for graph in ir.graphs_of(model)
        for name, value in graph.initializers.items()
        if value.shape is not None and value.dtype == ir.DataType.FLOAT
    }


# What shares an input ---------------------------------------------------------------------------


@pytest.mark.parametrize("opset", [11, 13, 17])
def test_matmuls_of_one_input_become_one_and_a_split(opset: int) -> None:
    model = parse(
        f"""g (float[B,S,4] x) => (float[B,S,3] a, float[B,S,3] b, float[B,S,5] c)
            <{numbers(q=(4, 3), k=(4, 3), v=(4, 5))}> {{
            a = MatMul(x, q)
            b = MatMul(x, k)
            t = MatMul(x, v)
            c = Relu(t)
        }}""",
        opset=opset,
    )
    after = batched(model)
    assert ops(after) == ["MatMul", "Split", "Relu"]
    assert [output.name for output in after.graph.outputs] == ["a", "b", "c"]
    assert list(weights(after).values()) == [(4, 11)]


def test_biases_are_joined_too() -> None:
    model = parse(
        f"""g (float[N,4] x) => (float[N,3] a, float[N,2] b) <{numbers(q=(4, 3), k=(4, 2), c=(3,), d=(2,))}> {{
            s = MatMul(x, q)
            a = Add(s, c)
            t = MatMul(x, k)
            b = Add(d, t)
        }}"""
    )
    after = batched(model)
    assert ops(after) == ["MatMul", "Add", "Split"]
    assert sorted(weights(after).values()) == [(4, 5), (5,)]


def test_constants_on_the_left_are_joined_by_rows() -> None:
    model = parse(
        f"""g (float[B,4,M] x) => (float[B,3,M] a, float[B,2,M] b) <{numbers(q=(3, 4), k=(2, 4))}> {{
            a = MatMul(q, x)
            b = MatMul(k, x)
        }}"""
    )
    after = batched(model)
    assert ops(after) == ["MatMul", "Split"]
    assert after.graph[1].attributes["axis"].as_int() == 1


@pytest.mark.parametrize("transposed", [0, 1])
def test_gemms_become_one(transposed: int) -> None:
    shapes = [(2, 4), (3, 4)] if transposed else [(4, 2), (4, 3)]
    model = parse(
        f"""g (float[N,4] x) => (float[N,2] a, float[N,3] b)
            <{numbers(q=shapes[0], k=shapes[1], c=(2,), d=(1, 3))}> {{
            a = Gemm <transB = {transposed}, alpha = 0.5>(x, q, c)
            b = Gemm <transB = {transposed}, alpha = 0.5>(x, k, d)
        }}"""
    )
    assert ops(batched(model)) == ["Gemm", "Split"]


def test_convolutions_with_equal_windows_become_one() -> None:
    model = parse(
        f"""g (float[N,3,8,8] x) => (float[N,4,8,8] a, float[N,2,8,8] b, float[N,2,4,4] c, float[N,4,6,6] d)
            <{numbers(q=(4, 3, 1, 1), k=(2, 3, 1, 1), s=(2, 3, 1, 1), w=(4, 3, 3, 3), c1=(4,), c2=(2,))}> {{
            a = Conv(x, q, c1)
            b = Conv(x, k, c2)
            c = Conv <strides = [2, 2]>(x, s)
            d = Conv(x, w)
        }}"""
    )
    after = batched(model)
    assert ops(after) == ["Conv", "Split", "Conv", "Conv"]
    assert (6, 3, 1, 1) in weights(after).values()


def test_in_bodies_an_outer_input_is_shared_by_the_products_of_each_body() -> None:
    model = parse(
        f"""g (float[N,4] x, bool c) => (float[N,2] y) <{numbers(q=(4, 2), k=(4, 2), p=(4, 2))}> {{
            y = If (c) <
                then_branch = t () => (float[N,2] u) {{
                    a = MatMul(x, q)
                    b = MatMul(x, k)
                    u = Mul(a, b)
                }},
                else_branch = e () => (float[N,2] v) {{ v = MatMul(x, p) }}
            >
        }}"""
    )
    after = batched(model)
    branches = {a.name: [node.op_type for node in a.as_graph()] for a in after.graph[0].attributes.values()}
    assert branches == {"then_branch": ["MatMul", "Split", "Mul"], "else_branch": ["MatMul"]}


def test_in_functions_too() -> None:
    model = parse(
        """<ir_version: 8, opset_import: ["" : 17, "local" : 1]>
        g (float[N,2] x) => (float[N,2] y) { y = local.f(x) }
        <domain: "local", opset_import: ["" : 17]>
        f (x) => (y) {
            q = Constant <value = float[2,2] {1.0, 2.0, 3.0, 4.0}> ()
            k = Constant <value = float[2,2] {1.0, 0.5, 3.0, -4.0}> ()
            a = MatMul(x, q)
            b = MatMul(x, k)
            y = Mul(a, b)
        }"""
    )
    (function,) = batched(model).functions.values()
    # the rank of x is known only from the calls
    assert [node.op_type for node in function] == ["Constant", "Constant", "MatMul", "Split", "Mul"]


def test_a_chain_of_groups_is_joined_group_by_group() -> None:
    model = parse(
        f"""g (float[N,2] x) => (float[N,2] y) <{numbers(a=(2, 2), b=(2, 2), c=(2, 2), d=(2, 2), e=(2,), f=(2,))}> {{
            p = MatMul(x, a)
            p1 = Add(p, e)
            q = MatMul(x, b)
            q1 = Add(q, f)
            r = MatMul(p1, c)
            s = MatMul(p1, d)
            t = Mul(r, s)
            y = Mul(t, q1)
        }}"""
    )
    assert ops(batched(model)) == ["MatMul", "Add", "Split", "MatMul", "Split", "Mul", "Mul"]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("a = MatMul(x, q) b = MatMul(z, k)", "other inputs"),
        ("a = MatMul(x, q) t = MatMul(x, q) b = Add(t, k2)", "the weight is shared: the new one would be a copy"),
        ("a = MatMul(x, q) w = Mul(k, k) b = MatMul(x, w)", "not constant"),
        ("a = MatMul(x, q) b = Gemm(x, k)", "other operators"),
        ("a = Gemm(x, q) b = Gemm <alpha = 2.0>(x, k)", "other factors"),
        ("a = Gemm(x, q, z) b = Gemm(x, k, z)", "the bias is not constant"),
        ("a = MatMul(x, q) b = MatMul(x, k3)", "a batch of matrices"),
        ("s = DequantizeLinear(u, scale) a = MatMul(s, q) b = MatMul(s, k)", "quantized"),
        (
            "c = MatMul(x, q) d = QuantizeLinear(c, scale) a = DequantizeLinear(d, scale) b = MatMul(x, k)",
            "quantized afterwards",
        ),
    ],
)  # fmt: skip
def test_other_products_stay(body: str, why: str) -> None:
    model = parse(
        f"""g (float[4,4] x, float[4,4] z, uint8[4,4] u) => (float a, float b)
            <{numbers(q=(4, 4), k=(4, 4), k2=(4, 4), k3=(2, 4, 4))}, float scale = {{0.1}}> {{ {body} }}"""
    )
    before = ops(model)
    run_pipeline(model, ALWAYS)
    assert ops(model) == before, why


def test_tied_weights_are_not_copied() -> None:
    text = numbers(q=(16, 16), k=(16, 16))
    model = parse(
        f"""g (float[N,16] x) => (float[N,16] a, float[N,16] b, float[16,16] c) <{text}, {text.split(", float")[0].replace("q =", "t =")}> {{
            a = MatMul(x, q)
            b = MatMul(x, k)
            c = Identity(t)
        }}"""
    )
    initializers = model.graph.initializers
    initializers["t"].const_value = initializers["q"].const_value
    run_pipeline(model, ALWAYS)
    assert ops(model) == ["MatMul", "MatMul", "Identity"]


def test_weights_above_the_limit_stay() -> None:
    text = f"""g (float[N,4] x) => (float[N,4] a, float[N,4] b) <{numbers(q=(4, 4), k=(4, 4))}> {{
        a = MatMul(x, q)
        b = MatMul(x, k)
    }}"""
    for limit, count in ((127, 2), (128, 1)):
        model = parse(text)
        run_pipeline(model, f"batch-mm{{always,limit={limit}}}")
        assert ops(model).count("MatMul") == count


# Sums -------------------------------------------------------------------------------------------


def test_a_sum_of_products_becomes_one_product() -> None:
    model = parse(
        f"""g (float[B,S,4] x, float[B,S,3] y, float[B,S,2] z) => (float[B,S,5] r)
            <{numbers(q=(4, 5), k=(3, 5), v=(2, 5), bias=(5,))}> {{
            a = MatMul(x, q)
            b = MatMul(y, k)
            c = MatMul(z, v)
            s = Add(a, b)
            t = Add(s, bias)
            r = Add(c, t)
        }}"""
    )
    after = batched(model)
    assert ops(after) == ["Concat", "MatMul", "Add"]
    assert sorted(weights(after).values()) == [(5,), (9, 5)]
    assert after.graph.outputs[0].name == "r"


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("a = MatMul(x, q) b = MatMul(w, k) r = Add(a, b)", "one is broadcast"),
        ("a = MatMul(x, q) b = MatMul(y, k) r = Sub(a, b)", "no sum"),
        ("a = MatMul(x, q) b = MatMul(y, k) s = Add(a, b) r = Mul(s, a)", "a product is read elsewhere"),
    ],
)
def test_other_sums_stay(body: str, why: str) -> None:
    model = parse(
        f"""g (float[B,2] x, float[B,2] y, float[1,2] w) => (float[B,2] r) <{numbers(q=(2, 2), k=(2, 2))}>
            {{ {body} }}"""
    )
    before = ops(model)
    run_pipeline(model, ALWAYS)
    assert ops(model) == before, why


def test_sums_with_other_readers_are_merged_separately() -> None:
    model = parse(
        f"""g (float[B,2] x, float[B,2] y) => (float[B,2] r, float[B,2] h)
            <{numbers(q=(2, 2), k=(2, 2), u=(2, 2), v=(2, 2))}> {{
            a = MatMul(x, q)
            b = MatMul(y, k)
            s = Add(a, b)
            h = Relu(s)
            c = MatMul(x, u)
            d = MatMul(y, v)
            t = Add(c, d)
            r = Add(t, s)
        }}"""
    )
    assert ops(batched(model)) == ["Concat", "MatMul", "Relu", "Concat", "MatMul", "Add"]


def test_a_long_sum_is_joined_in_linear_time() -> None:
    count = 3000
    random = np.random.default_rng(0)
    nodes = "".join(f"p{i} = MatMul(x, w{i})\n s{i} = Add(s{i - 1}, p{i})\n" for i in range(1, count))
    declared = ", ".join(f"float[1,1] w{i} = {{{random.standard_normal():.3f}}}" for i in range(count))
    model = parse(
        f"g (float[N,1] x) => (float[N,1] y) <{declared}> {{ s0 = MatMul(x, w0)\n{nodes} y = Relu(s{count - 1}) }}"
    )
    run_pipeline(model, ALWAYS)
    assert ops(model) == ["Concat", "MatMul", "Relu"]


# Whether it pays --------------------------------------------------------------------------------

TWO = f"""g (float[N,4] x) => (float[N,4] a, float[N,4] b) <{numbers(q=(4, 4), k=(4, 4))}> {{
    a = MatMul(x, q)
    b = MatMul(x, k)
}}"""


@pytest.mark.parametrize(
    ("grids", "count"),
    [
        ((), 2),  # nothing is known
        ((1.1, 1.1), 2),
        ((0.5, 0.5), 1),
        ((0.5, 1.1), 2),  # N is unknown: as for 512
    ],
)
def test_the_table_of_costs_decides(grids: tuple[float, ...], count: int) -> None:
    axes = (Axis("rows", (1, 512), 512),)
    grid = Grid("batch-mm", "shared input", "float", axes, grids, (0.98,) * len(grids))
    costs = Costs("made up", "cpu", "nowhere", (grid,) if grids else ())
    model = parse(TWO)
    _, cx = run_pipeline(model, "batch-mm", Options(costs=costs))
    assert ops(model).count("MatMul") == count
    assert len(cx.decisions) == 1


def test_exact_numerics_merge_no_products() -> None:
    model = parse(TWO)
    run_pipeline(model, ALWAYS, Options(numerics=Numerics.EXACT))
    assert ops(model) == ["MatMul", "MatMul"]


def test_o3_does_not_merge_products_on_the_cpu() -> None:
    report = graphopt.optimize(parse(TWO), pipeline="O3", device="cpu").report
    assert report.optimized.ops["MatMul"] == 2
    assert "batch-mm" in "\n".join(report.lines(1))
