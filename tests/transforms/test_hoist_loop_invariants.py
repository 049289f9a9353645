"""hoist-loop-invariants moves nodes that do not depend on the iteration out of loops."""

from __future__ import annotations

import pytest

from graphopt import ir
from tests.model_testing import agree, ops, parse, run_pipeline


def hoisted(text: str, pipeline: str = "hoist-loop-invariants,dce") -> ir.Model:
    """The model after ``pipeline``, which computes the same bits."""
    model = parse(text)
    run_pipeline(model, pipeline)
    ir.validate(model)
    assert agree(parse(text), model)
    _, cx = run_pipeline(model, pipeline)
    assert cx.actions == 0
    return model


def loop(body: str, trips: str = "n", inputs: str = "") -> str:
    return f"""g (float[N,4] x, float[N,4] z{inputs}, bool p) => (float[N,4] y)
    <int64 n = {{3}}, int64 none = {{0}}, bool go = {{1}}, float[4,4] k = {{1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7}},
     int64[1] one = {{1}}> {{
        y = Loop ({trips}, go, x) <
            body = b (int64 i, bool c, float[N,4] v) => (bool d, float[N,4] w) <float h = {{0.5}}>
            {{ d = Identity(c) {body} }}
        >
    }}"""


INVARIANTS = {
    "m = MatMul(z, k) e = Exp(m) w = Add(v, e)": ["MatMul", "Exp"],
    "m = Mul(z, h) w = Add(v, m)": ["Mul"],
    "q = Constant<value = float {0.25}>() m = Mul(z, q) q2 = Mul(v, q) w = Add(q2, m)": ["Mul"],
    "m = Gemm<transB = 1>(z, k) w = Add(v, m)": ["Gemm"],
    "t = Transpose(z) u = Transpose(t) m = Where(p, u, z) w = Add(v, m)": ["Transpose", "Transpose", "Where"],
    "s = Shape(z) f = Gather(s, one) g2 = Cast<to = 1>(f) w = Add(v, g2)": ["Shape", "Gather", "Cast"],
}


@pytest.mark.parametrize("body", INVARIANTS)
def test_invariants_that_cannot_fail_are_hoisted(body: str) -> None:
    assert ops(hoisted(loop(body, "n")))[:-1] == INVARIANTS[body]
    text = loop(body, "none")
    model = parse(text)
    run_pipeline(model, "hoist-loop-invariants,dce")
    assert ops(model)[:-1] == INVARIANTS[body]


@pytest.mark.parametrize("trips", ["none", "t"])
def test_loop_that_may_not_run_keeps_nodes_that_may_fail(trips: str) -> None:
    # the two may differ in size where the loop does not run
    text = loop("m = Add(z, q) e = Exp(m) w = Add(v, e)", trips, ", float[M,4] q, int64 t")
    model = parse(text)
    run_pipeline(model, "hoist-loop-invariants")
    assert ops(model) == ["Loop"]
    for kept in ("Div(j, j)", "Mod(j, j)"):
        text = loop(f"j = Cast<to = 7>(z) m = {kept} e = Cast<to = 1>(m) w = Add(v, e)", trips, ", int64 t")
        model = parse(text)
        run_pipeline(model, "hoist-loop-invariants")
        assert ops(model) == ["Cast", "Loop"]


def test_all_invariants_of_a_loop_that_always_runs_are_hoisted() -> None:
    text = loop("m = Add(z, q) s = CumSum(m, one) e = If (p) <then_branch = t () => (float[N,4] r) { r = Neg(s) }, "
                "else_branch = f () => (float[N,4] r2) { r2 = Abs(s) }> w = Add(v, e)", "n", ", float[N,4] q")  # fmt: skip
    assert ops(hoisted(text)) == ["Add", "CumSum", "If", "Loop"]


@pytest.mark.parametrize(
    "body",
    [
        "m = Mul(v, h) w = Add(m, z)",
        "f = Cast<to = 1>(i) w = Add(v, f)",
        "w = If (p) <then_branch = t () => (float[N,4] r) { r = Neg(z) }, "
        "else_branch = f () => (float[N,4] r2) { r2 = Abs(v) }>",
        "w = Abs(z)",
        "r = Identity(z) w = Add(v, r)",
    ],
)
def test_loop_variant_nodes_stay(body: str) -> None:
    assert ops(hoisted(loop(body))) == ["Loop"]


def test_constants_and_initial_sequences_and_optionals_stay() -> None:
    for body in (
        "q = Constant<value = float {0.25}>() w = Add(v, q)",
        "s = SequenceEmpty<dtype = 1>() t = SequenceInsert(s, v) w = SequenceAt(t, none)",
        "o = Optional(z) r = OptionalGetElement(o) w = Add(v, r)",
    ):
        model = parse(loop(body))
        run_pipeline(model, "hoist-loop-invariants")
        assert ops(model) == ["Loop"]


def test_random_numbers_stay() -> None:
    model = parse(loop("r = RandomNormalLike(z) e = Dropout(z, h, p) m = Add(r, e) w = Add(v, m)"))
    run_pipeline(model, "hoist-loop-invariants")
    assert ops(model) == ["Loop"]


def test_nested_loops_scans_and_functions() -> None:
    model = hoisted(
        """<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
        g (float[2] x, float[3,2] a) => (float[2] y, float[2] f) <int64 n = {2}, bool go = {1}> {
            f = own.Often(x)
            y = Scan <num_scan_inputs = 1, body = s (float[2] v, float[2] r) => (float[2] w) {
                w = Loop (n, go, v) <
                    body = b (int64 i, bool c, float[2] u) => (bool d, float[2] o) {
                        d = Identity(c) e = Exp(x) q = Sin(r) t = Mul(q, e) o = Add(u, t)
                    }
                >
            }> (x, a)
        }
        <domain: "own", opset_import: ["" : 17]>
        Often (x) => (z) {
            m = Constant<value = int64 {2}>()
            z = Loop (m, , x) <
                body = b (int64 i, bool c, float[2] v) => (bool d, float[2] w) {
                    d = Identity(c) h = Constant<value = float {0.5}>() u = Mul(x, h) w = Add(u, v)
                }
            >
        }"""
    )
    assert ops(model) == ["Often", "Exp", "Scan"]
    graphs = [[node.op_type for node in graph] for graph in ir.graphs_of(model)]
    assert ["Sin", "Mul", "Loop"] in graphs and ["Identity", "Add"] in graphs
    assert any(graph[-2:] == ["Mul", "Loop"] for graph in graphs)


def test_names_stay_unique() -> None:
    branch = """r = Loop (n, go, x) < body = b (int64 i, bool c, float[2] v) => (bool d, float[2] w)
                { d = Identity(c) e = Exp(z) w = Add(v, e) } >"""
    model = hoisted(
        f"""g (float[2] x, float[2] z, bool p) => (float[2] y) <int64 n = {{3}}, bool go = {{1}}> {{
            a = Loop (n, go, x) < body = b (int64 i, bool c, float[2] v) => (bool d, float[2] w)
                {{ d = Identity(c) e = Exp(z) w = Add(v, e) }} >
            q = If (p) < then_branch = t () => (float[2] r) {{ {branch} }},
                         else_branch = f () => (float[2] r2) {{ r2 = Neg(a) }} >
            y = Add(q, a)
        }}"""
    )
    hoisted_names = [
        node.outputs[0].name for graph in ir.graphs_of(model) for node in graph if node.op_type == "Exp"
    ]
    assert len(set(hoisted_names)) == 2 and ops(model) == ["Exp", "Loop", "If", "Add"]
