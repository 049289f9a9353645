"""batch-mm for computed operands: products that share an operand, and sums of products."""

from __future__ import annotations

import random

import pytest

import graphopt
from graphopt import ir
from graphopt.context import Options
from graphopt.cost import Axis, Costs, Grid
from graphopt.numerics import Numerics
from tests.model_testing import ops, parse, run_pipeline

ALWAYS = "batch-mm{always}"


def batched(text: str, opset: int = 17) -> ir.Model:
    """The model after the pass, which is verified."""
    model = parse(text, opset=opset)
    return graphopt.optimize(model, pipeline=ALWAYS, strict=True, require_verified=True).model


@pytest.mark.parametrize("opset", [11, 13, 17])
def test_products_of_one_input_and_computed_matrices(opset: int) -> None:
    after = batched(
        """g (float[B,4] x, float[4,3] u, float[4,5] v) => (float[B,3] a, float[B,5] b) {
            a = MatMul(x, u)
            b = MatMul(x, v)
        }""",
        opset,
    )
    assert ops(after) == ["Concat", "MatMul", "Split"]
    assert [output.name for output in after.graph.outputs] == ["a", "b"]


def test_rows_of_an_unrolled_recurrence_share_a_matrix() -> None:
    """The products of inputs become one; those of states, which depend on each other, stay."""
    after = batched(
        """g (float[3,2,4] x, float[2,3] h) => (float[2,3] y)
            <float[4,3] w = {1, 2, -1, 0, 1, 3, -2, 1, 1, 2, 0, 1}, float[3,3] r = {1, 0, 2, -1, 1, 1, 3, -1, 0}> {
            x0, x1, x2 = Split <axis = 0>(x)
            axes = Constant <value = int64[1] {0}>()
            s0 = Squeeze(x0, axes)  p0 = MatMul(s0, w)  q0 = MatMul(h, r)  t0 = Add(p0, q0)  h0 = Tanh(t0)
            s1 = Squeeze(x1, axes)  p1 = MatMul(s1, w)  q1 = MatMul(h0, r)  t1 = Add(p1, q1)  h1 = Tanh(t1)
            s2 = Squeeze(x2, axes)  p2 = MatMul(s2, w)  q2 = MatMul(h1, r)  t2 = Add(p2, q2)  y = Tanh(t2)
        }""",
        opset=17,
    )
    assert ops(after).count("MatMul") == 4 and ops(after).count("Split") == 2
    assert ops(after).index("MatMul") < ops(after).index("Tanh")


def test_batches_are_merged_by_their_matrices() -> None:
    after = batched(
        """g (float[B,2,4] x, float[B,4,3] u, float[B,4,3] v) => (float[B,2,3] a, float[B,2,3] b) {
            a = MatMul(x, u)
            b = MatMul(x, v)
        }"""
    )
    assert ops(after) == ["Concat", "MatMul", "Split"]
    assert [after.graph[index].attributes["axis"].as_int() for index in (0, 2)] == [2, 2]


def test_a_sum_becomes_one_product_with_other_summands_behind() -> None:
    after = batched(
        """g (float[B,K] x, float[K,3] u, float[B,5] y, float[5,3] v, float[B,3] z, float[1,3] w, float[B,1] c)
            => (float[B,3] r) {
            a = MatMul(x, u)
            b = MatMul(y, v)
            d = MatMul(c, w)
            s = Add(a, z)
            t = Add(b, d)
            r = Add(s, t)
        }"""
    )
    assert ops(after) == ["Concat", "Concat", "MatMul", "Add"]
    assert after.graph.outputs[0].name == "r"


def test_a_sum_of_batches() -> None:
    after = batched(
        """g (float[2,4] x, float[B,4,3] u, float[2,5] y, float[B,5,3] v) => (float[B,2,3] r) {
            a = MatMul(x, u)
            b = MatMul(y, v)
            r = Add(a, b)
        }"""
    )
    assert ops(after) == ["Concat", "Concat", "MatMul"]
    assert [node.attributes["axis"].as_int() for node in list(after.graph)[:2]] == [1, 1]


def test_the_most_frequent_form_of_a_sum_is_merged() -> None:
    after = batched(
        """g (float[1,2] o, float[4,2] x, float[2,2] u, float[4,2] y, float[2,2] v, float[2,2] w) => (float[4,2] r) {
            a = MatMul(o, u)
            b = MatMul(x, v)
            c = MatMul(y, w)
            s = Add(a, b)
            r = Add(s, c)
        }"""
    )
    assert ops(after) == ["MatMul", "Concat", "Concat", "MatMul", "Add"]


def test_in_bodies_too() -> None:
    after = batched(
        """g (float[4,2] x, float[4,2] y, float[2,2] w, bool c) => (float[4,2] r) {
            r = If (c) <
                then_branch = t () => (float[4,2] p) {
                    a = MatMul(x, w)
                    b = MatMul(y, w)
                    d = Relu(a)
                    p = Sub(d, b)
                },
                else_branch = e () => (float[4,2] q) { q = Identity(x) }
            >
        }"""
    )
    body = next(a.as_graph() for a in after.graph[0].attributes.values() if a.name == "then_branch")
    assert [node.op_type for node in body] == ["Concat", "MatMul", "Split", "Relu", "Sub"]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("p = MatMul(x, u) q = MatMul(p, u)", "the second depends on the first"),
        ("p = MatMul(x, u) t = Relu(p) q = MatMul(x, t)", "the second depends on the first"),
        ("p = MatMul(n, u) q = MatMul(m, u)", "the sizes of the Split are unknown"),
        ("p = MatMul(x, u) q = MatMul(z, u)", "the other operands have other ranks"),
        ("p = MatMul(x, u) q = MatMul(x, k)", "the other operand is constant"),
        ("p = MatMul(x, u) q = MatMul(x, u)", "they are equal"),
        ("p = MatMul(l, u) q = MatMul(l2, u)", "vectors"),
        ("a = DequantizeLinear(i, s) p = MatMul(a, u) q = MatMul(x, u)", "quantized"),
        ("p = MatMul(x, u) q = Gemm(y, u)", "other operators"),
        ("a = MatMul(x, u) b = MatMul(y, v) p = Sub(a, b) q = Relu(p)", "no sum"),
        ("a = MatMul(x, u) b = MatMul(z, v) p = Add(a, b) q = Relu(p)", "products of other shapes"),
        ("a = MatMul(x, u) b = MatMul(y, v) c = Add(a, b) p = Relu(c) q = Mul(c, a)", "a product is read elsewhere"),
        ("a = MatMul(x, u) b = MatMul(y, k) p = Add(a, b) q = Relu(p)", "a constant matrix"),
    ],
)  # fmt: skip
def test_other_products_stay(body: str, why: str) -> None:
    model = parse(
        f"""g (float[4,4] x, float[4,4] y, float[2,4,4] z, float[4,4] u, float[4,4] v, float[N,4] n, float[M,4] m,
               float[4] l, float[4] l2, uint8[4,4] i)
            => (float p, float q)
            <float[4,4] k = {{{", ".join("1" * 16)}}}, float s = {{0.1}}>
            {{ {body} }}"""
    )
    before = ops(model)
    run_pipeline(model, ALWAYS)
    assert ops(model) == before, why


def test_operands_above_the_limit_stay() -> None:
    text = """g (float[4,4] x, float[4,4] u, float[4,4] v) => (float[4,4] a, float[4,4] b) {
        a = MatMul(x, u)
        b = MatMul(x, v)
    }"""
    for limit, count in ((127, 2), (128, 1)):
        model = parse(text)
        run_pipeline(model, f"batch-mm{{always,limit={limit}}}")
        assert ops(model).count("MatMul") == count


def _random_model(seed: int) -> str:
    """Products of values of two sizes in any order, some of which are summed."""
    choose = random.Random(seed)
    shapes = {"x0": (2, 2), "x1": (2, 3), "x2": (3, 2), "x3": (3, 3)}
    inputs = list(shapes)
    lines = []
    for index in range(choose.randrange(6, 16)):
        name, left = f"v{index}", choose.choice(list(shapes))
        kind = choose.choice(["MatMul", "MatMul", "MatMul", "Add", "Tanh"])
        fits = [
            other
            for other in shapes
            if shapes[other] == shapes[left] or (kind == "MatMul" and shapes[other][0] == shapes[left][1])
        ]
        if kind == "MatMul":
            fits = [other for other in fits if shapes[other][0] == shapes[left][1]]
        right = choose.choice(fits)
        shapes[name] = (shapes[left][0], shapes[right][1]) if kind == "MatMul" else shapes[left]
        lines.append(f"{name} = {kind}({left})" if kind == "Tanh" else f"{name} = {kind}({left}, {right})")
    used = "\n".join(lines)
    ends = [
        name for name in shapes if name not in inputs and f"({name}" not in used and f" {name})" not in used
    ]

    def declared(names: list[str]) -> str:
        return ", ".join(f"float[{shapes[name][0]},{shapes[name][1]}] {name}" for name in names)

    return f"g ({declared(inputs)}) => ({declared(ends)}) {{ {used} }}"


@pytest.mark.parametrize("seed", range(12))
def test_random_products_keep_their_results(seed: int) -> None:
    after = batched(_random_model(seed))
    assert ir.find_fault(after) is None


def test_many_products_are_merged_in_linear_time() -> None:
    count = 3000
    nodes = "".join(f"t{i} = Tanh(x{i})\n p{i} = MatMul(t{i}, w)\n y{i} = Relu(p{i})\n" for i in range(count))
    inputs = ", ".join(f"float[1,2] x{i}" for i in range(count))
    outputs = ", ".join(f"float[1,2] y{i}" for i in range(count))
    model = parse(f"g ({inputs}, float[2,2] w) => ({outputs}) {{ {nodes} }}")
    run_pipeline(model, ALWAYS)
    assert ops(model).count("MatMul") == 1 and ops(model).count("Split") == 1


# Whether it pays ----------------------------------------------------------------------------------

SHARED = """g (float[1,256] x, float[1,256] y, float[256,256] w) => (float[1,256] a, float[1,256] b) {
    a = MatMul(x, w)
    b = MatMul(y, w)
}"""


@pytest.mark.parametrize(("ratio", "count"), [(None, 2), (1.1, 2), (0.5, 1)])
def test_the_table_of_costs_decides(ratio: float | None, count: int) -> None:
    axes = (Axis("count", (2,), 2), Axis("width", (256,), 256), Axis("rows", (1,), 1))
    figures = () if ratio is None else (ratio,)
    grid = Grid("batch-mm", "computed, shared matrix", "float", axes, figures, (0.98,) * len(figures))
    model = parse(SHARED)
    costs = Costs("made up", "cpu", "nowhere", () if ratio is None else (grid,))
    _, cx = run_pipeline(model, "batch-mm", Options(costs=costs))
    assert ops(model).count("MatMul") == count
    assert len(cx.decisions) == 1


def test_batches_of_matrices_have_no_figures() -> None:
    model = parse(
        """g (float[2,1,8] x, float[2,8,8] u, float[2,8,8] v) => (float[2,1,8] a, float[2,1,8] b) {
            a = MatMul(x, u)
            b = MatMul(x, v)
        }"""
    )
    run_pipeline(model, "batch-mm")
    assert ops(model) == ["MatMul", "MatMul"]


def test_exact_numerics_merge_no_products() -> None:
    model = parse(SHARED)
    run_pipeline(model, ALWAYS, Options(numerics=Numerics.EXACT))
    assert ops(model) == ["MatMul", "MatMul"]
