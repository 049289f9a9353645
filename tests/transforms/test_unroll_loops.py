"""unroll-loops replaces short loops by their iterations, and no others."""

from __future__ import annotations

import numpy as np
import pytest

import graphopt
from graphopt import ir
from graphopt.context import Observer, Refusal
from tests.autodiff.models import run
from tests.model_testing import ops, parse, run_pipeline


class _Refusals(Observer):
    def __init__(self) -> None:
        self.reasons: list[str] = []

    def refused(self, refusal: Refusal) -> None:
        self.reasons.append(refusal.reason)


def _unrolled(text: str, pipeline: str = "unroll-loops,dce", opset: int = 17) -> ir.Model:
    model, _ = _tried(text, pipeline, opset)
    left = [node.op_type for graph in ir.graphs_of(model) for node in graph]
    assert "Loop" not in left and "Scan" not in left
    return model


def _tried(text: str, pipeline: str = "unroll-loops", opset: int = 17) -> tuple[ir.Model, str]:
    model, refusals = parse(text, opset=opset), _Refusals()
    run_pipeline(model, pipeline, observers=(refusals,))
    ir.validate(model)
    verdict = graphopt.verify(parse(text, opset=opset), model, bits=True)
    assert verdict.ok, verdict
    return model, " ".join(refusals.reasons)


def _loop(
    trips: int, body: str, outputs: str = "float[2] y", results: str = "float[2] w", head: str = ""
) -> str:
    names = ", ".join(part.split(",")[0] for part in outputs.split("] ")[1:])
    return f"""g (float[2] x, bool p, int64 u) => ({outputs})
    <int64 n = {{{trips}}}, bool go = {{1}}, bool never = {{0}}, float[1] k = {{2.0}}> {{
        {head}
        {names} = Loop (n, go, x) <
            body = body (int64 i, bool c, float[2] v) => (bool d, {results}) {{ {body} }}
        >
    }}"""


@pytest.mark.parametrize("trips", [-1, 0, 1, 2, 5])
def test_carried_values(trips: int) -> None:
    model = _unrolled(_loop(trips, "d = Identity(c) w = Mul(v, k)"))
    assert ops(model) == (["Mul"] * trips if trips > 0 else ["Identity"])
    assert model.graph.outputs[0].name == "y"
    assert trips < 1 or ir.created_by(model.graph[0]) == "unroll-loops"


@pytest.mark.parametrize("opset", [11, 17])
@pytest.mark.parametrize("trips", [1, 3])
def test_gathered_values_the_iteration_number_and_constants_of_the_body(trips: int, opset: int) -> None:
    model = _unrolled(
        _loop(
            trips,
            """q = Constant<value = float[2] {1.0, 3.0}>() f = Cast<to = 1>(i)
            d = Identity(c) a = Add(v, q) w = Mul(a, f) s = Identity(f) s2 = Identity(v)""",
            "float[2] y, float[T] t, float[T, 2] t2",
            "float[2] w, float s, float[2] s2",
        ),
        opset=opset,
    )
    assert ops(model).count("Concat") == 2
    assert ops(model).count("Cast") == trips


def test_values_that_pass_through_swap_or_come_from_outside() -> None:
    _unrolled(
        """g (float[2] x, float[2] z) => (float[2] a, float[2] b, float[2] e, float[T, 2] f, float[T, 2] h)
        <int64[1] n = {3}> {
            o = Exp(x)
            a, b, e, f, h = Loop (n, , x, z, x) <
                body = body (int64[1] i, bool[1] c, float[2] p, float[2] q, float[2] r)
                => (bool d, float[2] q2, float[2] p2, float[2] r2, float[2] s, float[2] s2) {
                    d = Constant<value = bool {1}>()
                    m = Cast<to = 1>(i)
                    q2 = Add(q, o) p2 = Identity(p) r2 = Mul(r, m) s = Identity(o) s2 = Identity(r)
                }
            >
        }"""
    )


def test_outputs_that_nobody_reads() -> None:
    model = _unrolled(
        """g (float[2] x) => (float[2] y) <int64 n = {2}, bool go = {1}> {
            a, b, s = Loop (n, go, x, x) <
                body = body (int64 i, bool c, float[2] v, float[2] u)
                => (bool d, float[2] w, float[2] t, float[2] z)
                { d = Identity(c) w = Neg(u) t = Abs(v) z = Exp(v) }
            >
            y = Identity(a)
        }"""
    )
    assert ops(model) == ["Abs", "Neg", "Identity"]


def test_sizes_that_differ_from_trip_to_trip() -> None:
    model = _unrolled(
        """g (float[2] x) => (float[M] y) <int64 n = {3}, bool go = {1}> {
            y = Loop (n, go, x) <
                body = body (int64 i, bool c, float[K] v) => (bool d, float[J] w)
                { d = Identity(c) w = Concat<axis = 0>(v, x) }
            >
        }"""
    )
    assert ops(model) == ["Concat"] * 3


def test_bodies_nested_in_the_body_and_inner_loops() -> None:
    model = _unrolled(
        _loop(
            3,
            """d = Identity(c)
            a = If (p) <
                then_branch = t () => (float[2] r) <float[1] q = {3.0}> { m = Mul(v, q) r = Add(m, k) },
                else_branch = e () => (float[2] r2) { f = Cast<to = 1>(i) r2 = Add(v, f) }
            >
            w = Loop (u2, go, a) <
                body = inner (int64 j, bool c2, float[2] v2) => (bool d2, float[2] w2)
                { d2 = Identity(c2) f2 = Cast<to = 1>(j) w2 = Sub(v2, f2) }
            >""",
            head="u2 = Constant<value = int64 {2}>()",
        )
    )
    assert ops(model) == ["If", *["Cast", "Sub"] * 2] * 3 or ops(model).count("Sub") == 6
    names = [output.name for graph in ir.graphs_of(model) for node in graph for output in node.outputs]
    assert len(set(names)) == len(names)


def test_loops_in_branches_and_functions() -> None:
    model = _unrolled(
        """<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
        g (float[2] x, bool p) => (float[2] y) <int64 n = {2}, bool go = {1}> {
            a = own.Twice(x)
            y = If (p) <
                then_branch = t () => (float[2] r) {
                    r = Loop (n, go, a) <
                        body = b (int64 i, bool c, float[2] v) => (bool d, float[2] w) <float[1] k = {2.0}>
                        { d = Identity(c) w = Mul(v, k) }
                    >
                },
                else_branch = e () => (float[2] r2) { r2 = Abs(a) }
            >
        }
        <domain: "own", opset_import: ["" : 17]>
        Twice (s) => (z) {
            m = Constant<value = int64 {2}>()
            z = Loop (m, , s) <
                body = b (int64 i, bool c, float[2] v) => (bool d, float[2] w)
                { d = Identity(c) h = Constant<value = float {0.5}>() w = Mul(v, h) }
            >
        }"""
    )
    assert ops(model) == ["Twice", "If"]


@pytest.mark.parametrize(
    ("trips", "body", "reason"),
    [
        (
            2,
            "s = ReduceSum<keepdims = 0>(v) z = ReduceSum<keepdims = 0>(k) d = Less(s, z) w = Mul(v, k)",
            "true",
        ),
        (2, "d = Identity(p) w = Mul(v, k)", "true"),
        (2, "d = Not(c) w = Mul(v, k)", "true"),
        (2, "d = Identity(c) " + "".join(f"a{n} = Neg(v) " for n in range(31)) + "w = Mul(v, k)", "33 nodes"),
    ],
)
def test_loops_that_stay(trips: int, body: str, reason: str) -> None:
    model, told = _tried(_loop(trips, body))
    assert ops(model) == ["Loop"] and reason in told


@pytest.mark.parametrize(("trips", "left"), [(64, 0), (67, 3)])
def test_longer_loops_run_several_iterations_at_a_time(trips: int, left: int) -> None:
    text = _loop(
        trips,
        """q = Constant<value = float[2] {0.5, 0.25}>() f = Cast<to = 1>(i) d = Identity(c)
        a = Mul(v, q) w = Add(a, f)""",
    )
    model, _ = _tried(text, "unroll-loops,dce")
    assert ops(model) == ["Loop", *["Mul", "Cast", "Add"] * left] or ops(model).count("Add") == left
    body = model.graph[0].attributes["body"].as_graph()
    assert [node.op_type for node in body].count("Cast") == 8
    again, _ = _tried(text, "fixpoint(unroll-loops,dce)")
    assert ir.fingerprint(again.graph) == ir.fingerprint(model.graph)


def test_longer_loops_whose_values_swap_and_whose_bodies_nest() -> None:
    model, _ = _tried(
        """g (float[2] x, float[2] z, bool p) => (float[2] a, float[2] b, float[2] e)
        <int64[1] n = {65}, float[1] h = {0.5}> {
            a, b, e = Loop (n, , x, z, x) <
                body = body (int64[1] i, bool[1] c, float[2] s, float[2] t, float[2] r)
                => (bool[1] d, float[2] s2, float[2] t2, float[2] r2) {
                    d = Identity(c) s2 = Identity(t) t2 = Identity(s)
                    m = Mul(r, h)
                    r2 = If (p) <
                        then_branch = u () => (float[2] j) <float[1] q = {3.0}> { j = Add(m, q) },
                        else_branch = y () => (float[2] j2) { f = Cast<to = 1>(i) j2 = Add(m, f) }
                    >
                }
            >
        }"""
    )
    body = model.graph[0].attributes["body"].as_graph()
    assert [node.op_type for node in body].count("If") == 8
    names = [output.name for graph in ir.graphs_of(model) for node in graph for output in node.outputs]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("opset", [13, 17])
def test_longer_loops_over_sequences_in_functions_and_branches(opset: int) -> None:
    model, _ = _tried(
        f"""<ir_version: 8, opset_import: ["" : {opset}, "own" : 1]>
        g (float[2] x, bool p) => (float[2] y) <int64 n = {{70}}, bool go = {{1}}> {{
            a = own.Often(x)
            e = SequenceEmpty<dtype = 1>()
            s = Loop (n, go, e) <
                body = body (int64 i, bool[1] c, seq(float[2]) v) => (bool d, seq(float[2]) w)
                {{ d = Constant<value = bool {{1}}>() w = SequenceInsert(v, x) }}
            >
            q = ConcatFromSequence<axis = 0>(s)
            m = ReduceMean<axes = [0], keepdims = 0>(q)
            y = If (p) <
                then_branch = t () => (float[2] r) {{
                    r = Loop (n, go, x) <
                        body = b (int64 i, bool[1] c, float[2] v) => (bool d, float[2] w) <float[1] k = {{0.5}}>
                        {{ d = Constant<value = bool {{1}}>() w = Mul(v, k) }}
                    >
                }},
                else_branch = e () => (float[2] r2) {{ r2 = Add(a, m) }}
            >
        }}
        <domain: "own", opset_import: ["" : {opset}]>
        Often (s) => (z) {{
            m = Constant<value = int64 {{70}}>()
            z = Loop (m, , s) <
                body = b (int64 i, bool c, float[2] v) => (bool d, float[2] w) {{
                    d = Identity(c) h = Constant<value = float {{0.5}}>()
                    f = Cast<to = 1>(i) u = Mul(v, h) w = Add(u, f)
                }}
            >
        }}""",
        opset=opset,
    )
    graphs = list(ir.graphs_of(model))
    counts = [sum(node.op_type == kind for graph in graphs for node in graph) for kind in ("Cast", "Mul")]
    assert counts == [8 + 6, 2 * (8 + 6) + 1]
    assert ops(model).count("SequenceInsert") == (6 if opset == 17 else 0)


def test_longer_loops_that_gather_or_exceed_the_limit_stay() -> None:
    body = "d = Identity(c) w = Mul(v, k)"
    model, told = _tried(_loop(64, body), "unroll-loops{factor=1}")
    assert ops(model) == ["Loop"] and "limit is below 64" in told
    text = _loop(64, body + " s = Identity(v)", "float[2] y, float[T, 2] t", "float[2] w, float[2] s")
    model, told = _tried(text)
    assert ops(model) == ["Loop"] and "stacked outputs" in told


def test_loops_that_draw_random_numbers_stay() -> None:
    model, refusals = (
        parse(_loop(2, "d = Identity(c) r = RandomNormalLike<seed = 1.0>(v) w = Add(v, r)")),
        _Refusals(),
    )
    run_pipeline(model, "unroll-loops", observers=(refusals,))
    assert ops(model) == ["Loop"] and "random" in refusals.reasons[0]


def test_unknown_trip_counts_and_gathering_nothing() -> None:
    body = "d = Identity(c) w = Mul(v, k) s = Identity(v)"
    text = _loop(0, body, "float[2] y, float[T, 2] t", "float[2] w, float[2] s")
    model, told = _tried(text)
    assert ops(model) == ["Loop"] and "has no trips" in told
    model, told = _tried(_loop(2, "d = Identity(c) w = Mul(v, k)").replace("Loop (n", "Loop (u"))
    assert ops(model) == ["Loop"] and "not known" in told
    assert ops(_unrolled(_loop(9, "d = Identity(c) w = Mul(v, k)").replace("(n, go", "(u, never"))) == [
        "Identity"
    ]


def test_optional_and_sequence_values() -> None:
    text = """g (optional(seq(float[2])) o, float[2] x) => (seq(float[2]) y) <int64 n = {2}, bool go = {1}> {
        y = Loop (n, go, o) <
            body = body (int64 i, bool c, optional(seq(float[2])) v) => (bool d, seq(float[2]) w) {
                d = Identity(c) w = SequenceConstruct(x, x)
            }
        >
    }"""
    model, refusals = parse(text, opset=18), _Refusals()
    run_pipeline(model, "unroll-loops", observers=(refusals,))
    assert ops(model) == ["Loop"] and "optional" in refusals.reasons[0]
    model = _unrolled(
        """g (float[2] x) => (float[4] y) <int64 n = {2}, bool go = {1}> {
            e = SequenceEmpty<dtype = 1>()
            s = Loop (n, go, e) <
                body = body (int64 i, bool c, seq(float[2]) v) => (bool d, seq(float[2]) w)
                { d = Identity(c) w = SequenceInsert(v, x) }
            >
            y = ConcatFromSequence<axis = 0>(s)
        }"""
    )
    assert ops(model).count("SequenceInsert") == 2


def test_growth_is_bounded() -> None:
    loop = "v{0} = Loop (n, go, v{1}) < body = b (int64 i, bool c, float[2] v) => (bool d, float[2] w) {{ {2} }} >"
    body = "d = Identity(c) " + " ".join(f"a{n} = Neg(v)" for n in range(30)) + " w = Mul(v, k)"
    loops = " ".join(loop.format(n + 1, n, body) for n in range(4))
    model = parse(
        f"""g (float[2] v0) => (float[2] v4)
        <int64 n = {{60}}, bool go = {{1}}, float[1] k = {{0.5}}> {{ {loops} }}"""
    )
    run_pipeline(model, "unroll-loops")
    assert ops(model).count("Loop") == 2 and len(model.graph) < 4100


@pytest.mark.parametrize("opset", [10, 17])
def test_scans(opset: int) -> None:
    model = _unrolled(
        """g (float[2] x, float[3, 2] a, float[2, 3] b) => (float[2] y, float[3, 2] s, float[2, 3] t) {
            y, s, t = Scan <num_scan_inputs = 2, scan_input_axes = [0, 1], scan_input_directions = [0, 1],
                scan_output_axes = [0, 1], scan_output_directions = [1, 0],
                body = body (float[2] v, float[2] p, float[2] q) => (float[2] w, float[2] r, float[2] u)
                { m = Mul(p, q) w = Add(v, m) r = Neg(w) u = Identity(p) }
            > (x, a, b)
        }""",
        opset=opset,
    )
    assert ops(model).count("Gather") == 6 and ops(model).count("Concat") == 2


@pytest.mark.parametrize("length", ["N", "0", "64"])
def test_scans_that_stay(length: str) -> None:
    model = parse(
        f"""g (float[{length}, 2] a) => (float[M, 2] s) {{
            s = Scan <num_scan_inputs = 1, body = body (float[2] p) => (float[2] r) {{ r = Neg(p) }}> (a)
        }}"""
    )
    run_pipeline(model, "unroll-loops")
    assert ops(model) == ["Scan"]


@pytest.mark.parametrize("trips", [0, 1])
@pytest.mark.parametrize("stays", ["Identity(c)", "Not(c)", "Identity(p)"])
def test_presets_unroll_loops_of_at_most_one_iteration(trips: int, stays: str) -> None:
    """The loop may have any condition, and a body of any size."""
    large = (
        "".join(f"a{n} = Exp(v) " for n in range(40)) + f"w = Sum({', '.join(f'a{n}' for n in range(40))})"
    )
    model, _ = _tried(_loop(trips, f"d = {stays} {large}"), "O1")
    assert "Loop" not in ops(model) and len(ops(model)) <= (2 if trips else 1)


def test_presets_keep_a_loop_of_two_iterations() -> None:
    model, _ = _tried(_loop(2, "d = Identity(c) w = Mul(v, k)"), "O2")
    assert ops(model) == ["Loop"]


@pytest.mark.parametrize("shape", ["int64", "int64[1]"])
def test_a_single_trip_may_read_its_number_and_condition(shape: str) -> None:
    text = f"""g (float[2] x) => (float[2] y, {shape} n, bool b) <int64 one = {{1}}, bool go = {{1}}> {{
        y, n, b = Loop (one, go, x) < body = body ({shape} i, bool c, float[2] v) => (bool d, float[2] w, {shape} j, bool e)
            {{ d = Identity(c) w = Neg(v) j = Identity(i) e = Not(c) }} >
    }}"""
    model, _ = _tried(text.replace("float[2] y, int64 n, bool b", "float[2] y, int64[1] n, bool[1] b"), "O1")
    assert "Loop" not in ops(model)


def test_inner_loop_stays_if_only_it_determines_the_shape_of_a_stacked_output() -> None:
    text = """g (float[] x, int64 n) => (float[] y, float[] s) {
        y, s = Loop (n, , x) <body = f (int64 i, bool c, float[] v) => (bool d, float[] w, float[] r) {
            three = Constant <value_int = 3>()  d = Identity(c)
            w, r = Loop (three, , v) <body = h (int64 j, bool e, float[1,4] a) => (bool l, float[] b, float[] q)
                { l = Identity(e)  b = Cos(a)  q = Sin(a) }> }> }"""
    model = parse(text, opset=17)
    run_pipeline(model, "unroll-loops")
    found = run(model, {"x": np.ones((1, 4), np.float32), "n": np.array(0)})
    assert found["s"].shape == (0, 0, 1, 4)
    model = parse(text.replace("[] x", "[1,4] x"), opset=17)  # onnxruntime does not infer this in a body
    run_pipeline(model, "unroll-loops")
    assert ops(model) == ["Loop"] and "Concat" in [inner.op_type for inner in ir.walk_nodes(model.graph)]
    assert run(model, {"x": np.ones((1, 4), np.float32), "n": np.array(0)})["s"].shape == (0, 3, 1, 4)
