"""dce, cse, constant-pooling, canonicalize and fold-if keep what must stay and remove what may go."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from graphopt import ir
from tests.support import ops, parse, run_pipeline


def test_dce_keeps_the_interface_and_removes_dead_trees() -> None:
    model = parse(
        """g (float[N] x, float[N] unused, float[1] w) => (float[N] y)
        <float[1] w = {2.0}, float[1] dead = {1.0}> {
            a = Relu(x)
            b = Add(a, dead)
            c = Exp(b)
            y = Mul(x, w)
        }"""
    )
    run_pipeline(model, "dce")
    assert ops(model) == ["Mul"]
    assert [value.name for value in model.graph.inputs] == ["x", "unused", "w"]
    assert list(model.graph.initializers) == ["w"]


def test_dce_frees_values_captured_by_dead_bodies() -> None:
    model = parse(
        """g (float[N] x, bool c) => (float[N] y) {
            a = Exp(x)
            dead = If (c) <
                then_branch = t () => (float[N] t1) { t1 = Neg(a) },
                else_branch = e () => (float[N] e1) { e1 = Abs(a) }
            >
            y = Relu(x)
        }"""
    )
    run_pipeline(model, "dce")
    assert ops(model) == ["Relu"]


def test_cse_merges_equal_nodes_and_keeps_different_ones() -> None:
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


def test_cse_never_merges_random_nodes_or_unknown_domains() -> None:
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
def test_functions_that_draw_random_numbers_are_neither_merged_nor_folded(domain: str) -> None:
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


def test_cse_leaves_casts_alone_that_the_runtime_drops_one_by_one() -> None:
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
def test_a_wrongly_declared_output_misleads_nobody_who_did_not_read_it(body: str) -> None:
    model = parse(f"g (float[6] x, int64[2] q) => (float[7, 7] y, int64[2] s) {{ {body} }}")
    run_pipeline(model, "O2")
    session = onnxruntime.InferenceSession(ir.to_bytes(model), providers=["CPUExecutionProvider"])
    _, shape = session.run(None, {"x": np.zeros(6, np.float32), "q": np.array([3, 2])})
    assert shape.tolist() == [3, 2]


def test_facts_of_a_function_named_like_a_kernel_are_those_of_the_kernel() -> None:
    model = parse(
        """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        g (float[2, 3] x) => (int64[2] s) { y = com.microsoft.Gelu(x) s = Shape(y) }
        <domain: "com.microsoft", opset_import: ["" : 17]>
        Gelu (v) => (w) { w = Transpose(v) }"""
    )
    run_pipeline(model, "O2")
    session = onnxruntime.InferenceSession(ir.to_bytes(model), providers=["CPUExecutionProvider"])
    assert session.run(None, {"x": np.zeros((2, 3), np.float32)})[0].tolist() == [2, 3]


def test_cse_keeps_both_names_when_both_are_outputs() -> None:
    model = parse("g (float[N] x) => (float[N] y, float[N] z) { y = Relu(x) z = Relu(x) }")
    run_pipeline(model, "cse")
    assert [value.name for value in model.graph.outputs] == ["y", "z"]
    assert ops(model) == ["Relu", "Relu"]


def test_cse_lets_a_body_reuse_an_outer_value() -> None:
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


def test_constant_pooling_merges_equal_contents_of_equal_type_only() -> None:
    model = parse(
        """g (float[2] x, int64[2] i) => (float[2] y, int64[2] j, float[2] z)
        <float[2] p = {1.0, 2.0}, float[2] q = {1.0, 2.0}, float[2] r = {1.0, 3.0}, int64[2] s = {0, 0},
         float[2] t = {0.0, 0.0}> {
            a = Add(x, p)
            b = Mul(a, q)
            c = Mul(b, r)
            y = Add(c, t)
            j = Add(i, s)
            z = Constant<value = float[2] {1.0, 2.0}>()
        }"""
    )
    run_pipeline(model, "constant-pooling")
    assert list(model.graph.initializers) == ["p", "r", "s", "t"]
    assert [value.name for value in model.graph.outputs] == ["y", "j", "z"]


def test_canonicalize_keeps_empty_inputs_that_an_operator_demands() -> None:
    model = parse(
        """g (float[2] x, float low, int64 n) => (float[2] y, float[T,2] r) {
            y = Clip(x, low)
            r = Loop (n) < body = b (int64 i, bool c) => (bool d, float[2] o) { d = Identity(c) o = Exp(x) } >
        }"""
    )
    proto = ir.to_proto(model)
    for node in proto.graph.node:
        node.input.append("")  # which ONNX text can't tell
    model = ir.from_proto(proto)
    run_pipeline(model, "canonicalize")
    assert [list(node.input) for node in ir.to_proto(model).graph.node] == [["x", "low"], ["n", ""]]


def test_canonicalize_moves_constants_to_the_right() -> None:
    model = parse(
        "g (float[N] x) => (float[N] y) <float[1] c = {2.0}> { a = Mul(c, x) b = Sub(c, a) y = Max(c, b) }"
    )
    run_pipeline(model, "canonicalize")
    read = [[value.name for value in node.inputs if value] for node in model.graph]
    assert read == [["x", "c"], ["c", "a"], ["c", "b"]]  # which of 0.0 and -0.0 is the maximum shows


@pytest.mark.parametrize(("condition", "left"), [(1, "Neg"), (0, "Abs")])
def test_fold_if_takes_the_branch_and_keeps_names_unique(condition: int, left: str) -> None:
    model = parse(
        f"""g (float[N] x) => (float[N] y) <bool c = {{{condition}}}> {{
            a = Exp(x)
            b = If (c) <
                then_branch = t () => (float[N] r) <float[1] k = {{3.0}}> {{ s = Neg(a) r = Add(s, k) }},
                else_branch = e () => (float[N] r) <float[1] k = {{4.0}}> {{ s = Abs(a) r = Mul(s, k) }}
            >
            y = Relu(b)
        }}"""
    )
    run_pipeline(model, "fold-if,dce")
    assert ops(model) == ["Exp", left, "Add" if condition else "Mul", "Relu"]
    names = [output.name for node in model.graph for output in node.outputs]
    assert len(set(names)) == len(names)
    onnx.checker.check_model(ir.to_proto(model), full_check=True)


def test_a_loop_over_constants_is_folded_only_if_it_ends_soon() -> None:
    text = """g (float[2] x) => (float[2] y)
    <int64 n = {%d}, bool go = {1}, float[2] a = {1.0, 2.0}, float[1] k = {2.0}> {
        b = Loop (n, go, a) <
            body = body (int64 i, bool c, float[2] v) => (bool d, float[2] w) { d = Identity(c) w = Mul(v, k) }
        >
        y = Add(x, b)
    }"""
    short, long = parse(text % 3), parse(text % 200_000_000)
    run_pipeline(short, "constant-propagation")
    run_pipeline(long, "constant-propagation")
    assert ops(short) == ["Add"]
    ir.verify(short)  # the body of what is gone reads nothing any more
    folded = ir.constant_of(short.graph[0].inputs[1])
    assert folded is not None and folded.numpy().tolist() == [8.0, 16.0]
    assert ops(long) == ["Loop", "Add"]


def test_an_if_on_a_negation_swaps_its_branches() -> None:
    model = parse(
        """g (float[N] x, bool c) => (float[N] y) {
            d = Not(c)
            y = If (d) <
                then_branch = t () => (float[N] r) { r = Neg(x) },
                else_branch = e () => (float[N] r2) { r2 = Abs(x) }
            >
        }"""
    )
    run_pipeline(model, "fold-if,dce")
    assert ops(model) == ["If"]
    (branch,) = model.graph
    assert branch.inputs[0].name == "c"
    assert [node.op_type for node in branch.attributes["then_branch"].as_graph()] == ["Abs"]
    assert [node.op_type for node in branch.attributes["else_branch"].as_graph()] == ["Neg"]


def _chain(length: int) -> ir.Model:
    nodes = [helper.make_node("Relu" if i % 3 else "Neg", [f"v{i}"], [f"v{i + 1}"]) for i in range(length)]
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N"]) for name in ("v0", f"v{length}")]
    graph = helper.make_graph(nodes, "g", info[:1], info[1:])
    return ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


def test_a_chain_of_10_000_nodes_compiles() -> None:
    model = _chain(10_000)
    run_pipeline(model, "O2")
    assert 3_000 < len(model.graph) <= 10_000


def test_match_attempts_grow_linearly() -> None:
    attempts = []
    for length in (1_000, 5_000):
        _, cx = run_pipeline(_chain(length), "peephole")
        attempts.append(cx.attempts)
    assert attempts[1] <= 5.5 * attempts[0]


def test_two_runs_give_the_same_bytes() -> None:
    def build() -> bytes:
        model = parse(
            """g (float[N] x) => (float[N] y) <float[1] p = {1.5}, float[1] q = {1.5}> {
                a = Add(x, p) b = Add(x, q) c = Mul(a, b) y = Identity(c)
            }"""
        )
        run_pipeline(model, "O2")
        return ir.to_bytes(model)

    assert build() == build()


def test_folding_respects_the_byte_budget_and_overridable_initializers() -> None:
    model = parse(
        """g (float[N] x, float[1] w) => (float[N] y, float[1024,1024] big)
        <float[1] w = {2.0}, float[1] k = {3.0}, int64[2] shape = {1024, 1024}> {
            a = Add(w, k)
            b = Add(k, k)
            c = Mul(a, b)
            y = Mul(x, c)
            big = Expand(k, shape)
        }"""
    )
    run_pipeline(model, "constant-propagation,dce")
    assert ops(model) == ["Add", "Mul", "Mul", "Expand"]
    folded = [ir.constant_of(value) for value in model.graph.node(1).inputs]
    assert any(tensor is not None and np.array_equal(tensor.numpy(), [6.0]) for tensor in folded)


def test_cse_merges_what_is_known_to_hold_the_same_numbers() -> None:
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


def _hub(length: int) -> ir.Model:
    """One value with many readers, each behind an Identity."""
    nodes = [helper.make_node("Relu", ["x"], ["r"])]
    nodes += [helper.make_node("Identity", ["r"], [f"i{k}"]) for k in range(length)]
    nodes += [helper.make_node("LeakyRelu", [f"i{k}"], [f"e{k}"], alpha=k / length) for k in range(length)]
    return _model([*nodes, helper.make_node("Sum", [f"e{k}" for k in range(length)], ["y"])])


def _concats(length: int) -> ir.Model:
    """Each Concat appends to the one before."""
    names = ["x", *(f"c{k}" for k in range(length))]
    nodes = [helper.make_node("Concat", [names[k], "x"], [names[k + 1]], axis=0) for k in range(length)]
    return _model([*nodes, helper.make_node("Relu", [names[-1]], ["y"])])


def _old_weights(length: int) -> ir.Model:
    """Below IR version 4 every weight is an input too."""
    names = ["x", *(f"c{k}" for k in range(length - 1)), "y"]
    nodes = [
        helper.make_node("Mul" if k % 2 else "Sub", [names[k], f"w{k}"], [names[k + 1]])
        for k in range(length)
    ]
    weights = [helper.make_tensor(f"w{k}", TensorProto.FLOAT, [1], [k + 0.5]) for k in range(length)]
    return _model(nodes, weights, ir_version=3)


def _model(
    nodes: list[onnx.NodeProto], weights: list[TensorProto] | None = None, ir_version: int = 8
) -> ir.Model:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N"]) for name in "xy")
    listed = [helper.make_tensor_value_info(w.name, TensorProto.FLOAT, [1]) for w in weights or ()]
    graph = helper.make_graph(nodes, "g", [x, *listed], [y], weights or [])
    return ir.from_proto(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=ir_version)
    )


@pytest.mark.parametrize("build", [_hub, _concats, _old_weights])
def test_work_grows_linearly(build: Callable[[int], ir.Model]) -> None:
    def calls(length: int) -> int:
        model, count = build(length), 0

        def watch(frame: object, event: str, argument: object) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        sys.setprofile(watch)
        try:
            run_pipeline(model, "O2")
        finally:
            sys.setprofile(None)
        return count

    calls(10)  # imports and caches
    assert calls(800) < 4.6 * calls(200)
