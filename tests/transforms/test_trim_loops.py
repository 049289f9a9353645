"""trim-loops removes unused state, stacked outputs and scanned inputs of loops."""

from __future__ import annotations

import numpy as np
import pytest

from graphopt import ir
from tests.autodiff.models import run
from tests.model_testing import agree, ops, parse, run_pipeline

TRIPS = [-1, 0, 1, 4]


def trimmed(text: str, pipeline: str = "trim-loops,dce", opset: int = 17) -> ir.Model:
    """The model after ``pipeline``, which computes the same bits."""
    model = parse(text, opset=opset)
    run_pipeline(model, pipeline)
    ir.validate(model)
    assert agree(parse(text, opset=opset), model, sizes=(2, 1))
    _, cx = run_pipeline(model, pipeline)
    assert cx.actions == 0
    return model


def body_of(model: ir.Model, kind: str = "Loop") -> tuple[ir.Node, ir.Graph]:
    node = next(node for graph in ir.graphs_of(model) for node in graph if node.op_type == kind)
    return node, node.attributes["body"].as_graph()


@pytest.mark.parametrize("trips", TRIPS)
def test_outputs_that_nobody_reads(trips: int) -> None:
    model = trimmed(
        f"""g (float[2] x, bool go) => (float[2] y, float[T,2] s) <int64 n = {{{trips}}}> {{
            y, b, r, s = Loop (n, go, x, x) <
                body = f (int64 i, bool c, float[2] v, float[2] u)
                => (bool d, float[2] w, float[2] t, float[2] p, float[2] q)
                {{ d = Identity(c) w = Neg(v) t = Exp(u) p = Cos(t) q = Sin(v) }}
            >
        }}"""
    )
    node, body = body_of(model)
    assert len(node.inputs) == 3 and len(node.outputs) == 2
    assert [inner.op_type for inner in body] == ["Identity", "Neg", "Sin"]
    assert [output.name for output in model.graph.outputs] == ["y", "s"]


@pytest.mark.parametrize("trips", TRIPS)
@pytest.mark.parametrize("dtype", ["float", "int64"])
def test_carried_values_that_do_not_change(trips: int, dtype: str) -> None:
    model = trimmed(
        f"""g ({dtype}[2] x, {dtype}[2] z, bool go) => ({dtype}[2] y, {dtype}[2] e, {dtype}[2] f)
        <int64 n = {{{trips}}}> {{
            y, e, h = Loop (n, go, x, z, z) <
                body = b (int64 i, bool c, {dtype}[2] v, {dtype}[2] u, {dtype}[2] k)
                => (bool d, {dtype}[2] w, {dtype}[2] u2, {dtype}[2] k2)
                {{ d = Identity(c) a = Add(v, u) w = Sub(a, k) u1 = Identity(u) u2 = Identity(u1) k2 = Identity(k) }}
            >
            f = Identity(h)
        }}"""
    )
    node, body = body_of(model)
    assert len(node.inputs) == 3 and len(body.inputs) == 3
    assert [inner.op_type for inner in body] == ["Identity", "Add", "Sub"]


def test_loop_state_read_only_by_itself_is_removed() -> None:
    model = trimmed(
        """g (float[2] x, bool go) => (float[2] y) <int64 n = {3}> {
            y, a, b = Loop (n, go, x, x, x) <
                body = f (int64 i, bool c, float[2] v, float[2] p, float[2] q)
                => (bool d, float[2] w, float[2] p2, float[2] q2)
                { d = Identity(c) w = Neg(v) p2 = Add(q, q) q2 = Add(p, v) }
            >
        }"""
    )
    assert len(body_of(model)[0].inputs) == 3


@pytest.mark.parametrize("reader", ["condition", "nested body"])
def test_values_that_are_needed_in_other_ways_stay(reader: str) -> None:
    loop = {
        "condition": "m = ReduceSum<keepdims = 0>(u) d = Less(m, k) w = Neg(v)",
        "nested body": """d = Identity(c) w = If (p) < then_branch = t () => (float[2] r) { r = Add(v, u) },
                          else_branch = e () => (float[2] r2) { r2 = Neg(v) } >""",
    }[reader]
    model = trimmed(
        f"""g (float[2] x, bool p) => (float[2] y) <int64 n = {{3}}, bool go = {{1}}, float k = {{2.0}}> {{
            y, a = Loop (n, go, x, x) <
                body = f (int64 i, bool c, float[2] v, float[2] u) => (bool d, float[2] w, float[2] t)
                {{ {loop} t = Add(u, u) }}
            >
        }}"""
    )
    assert len(body_of(model)[0].inputs) == 4


def test_a_value_that_swaps_is_not_fixed() -> None:
    model = trimmed(
        """g (float[2] x, float[2] z) => (float[2] y) <int64 n = {3}> {
            y, a = Loop (n, , x, z) <
                body = f (int64 i, bool c, float[2] v, float[2] u) => (bool d, float[2] w, float[2] t)
                { d = Identity(c) w = Identity(u) t = Identity(v) }
            >
        }"""
    )
    assert len(body_of(model)[0].inputs) == 4


def test_loops_in_branches_loops_and_functions() -> None:
    model = trimmed(
        """<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
        g (float[2] x, bool p) => (float[2] y) <int64 n = {2}, bool go = {1}> {
            y, dead = Loop (n, go, x, x) <
                body = f (int64 i, bool c, float[2] v, float[2] u) => (bool d, float[2] w, float[2] t) {
                    d = Identity(c)
                    t = Identity(u)
                    w = If (p) <
                        then_branch = a () => (float[2] r) {
                            r, s = Loop (n, go, v) <
                                body = f2 (int64 i2, bool c2, float[2] v2) => (bool d2, float[2] w2, float[2] s2)
                                { d2 = Identity(c2) w2 = Add(v2, u) s2 = Exp(v2) }
                            >
                        },
                        else_branch = b () => (float[2] r2) { r2 = own.Twice(v) }
                    >
                }
            >
        }
        <domain: "own", opset_import: ["" : 17]>
        Twice (x) => (z) {
            m = Constant<value = int64 {2}>()
            z, q = Loop (m, , x, x) <
                body = b (int64 i, bool c, float[2] v, float[2] u) => (bool d, float[2] w, float[2] t)
                { d = Identity(c) w = Add(v, v) t = Mul(u, v) }
            >
        }"""
    )
    loops = [node for graph in ir.graphs_of(model) for node in graph if node.op_type == "Loop"]
    assert [(len(node.inputs), len(node.outputs)) for node in loops] == [(3, 1)] * 3


def test_sequences() -> None:
    model = trimmed(
        """g (float[2] x) => (float[2] y) <int64 n = {2}, bool go = {1}, int64 zero = {0}> {
            e = SequenceConstruct(x, x)
            l = SequenceEmpty()
            y, f, m = Loop (n, go, x, e, l) <
                body = b (int64 i, bool c, float[2] v, seq(float[2]) s, seq(float[2]) k)
                => (bool d, float[2] w, seq(float[2]) s2, seq(float[2]) k2)
                { d = Identity(c) a = SequenceAt(s, zero) w = Add(v, a) s2 = Identity(s) k2 = SequenceInsert(k, v) }
            >
        }"""
    )
    assert len(body_of(model)[0].inputs) == 3


@pytest.mark.parametrize(("opset", "inputs"), [(10, 3), (11, 2)])
def test_old_loops_have_to_carry_something(opset: int, inputs: int) -> None:
    text = """g (float[N] x, int64 n) => (float[M,N] y) {
        z, y = Loop (n, "", x)
            < body = f (int64 i, bool c, float[N] v) => (bool d, float[N] w, float[N] u) { d = Identity(c) w = Identity(v) u = Neg(v) } >
    }"""
    assert len(body_of(trimmed(text, opset=opset))[0].inputs) == inputs


@pytest.mark.parametrize("opset", [10, 17])
def test_scans(opset: int) -> None:
    text = """g (float[2] x, float[N,3] a, float[2,N] b, float[N,2] e) => (float[2] y, float[2,N] t) {
        y, z, s, t = Scan <num_scan_inputs = 3, scan_input_axes = [0, 1, 0], scan_input_directions = [0, 1, 0],
            scan_output_axes = [0, 1], scan_output_directions = [1, 0],
            body = f (float[2] v, float[2] k, float[3] p, float[2] q, float[2] o)
            => (float[2] w, float[2] k2, float[3] r, float[2] u)
            { w = Add(v, q) k2 = Identity(k) r = Neg(p) u = Sub(q, k) }
        > (x, x, a, b, e)
    }"""
    model = trimmed(text, opset=opset)
    node, body = body_of(model, "Scan")
    assert [len(node.inputs), len(node.outputs), len(body.inputs)] == [2, 2, 2]
    entries = {
        name: list(node.attributes[name].as_ints()) for name in node.attributes if name.startswith("scan_")
    }
    assert entries == {
        "scan_input_axes": [1],
        "scan_input_directions": [1],
        "scan_output_axes": [1],
        "scan_output_directions": [0],
    }


def test_scan_keeps_the_input_that_determines_its_length() -> None:
    text = """g (float[2] x, float[N,2] a, float[N,2] b) => (float[2] y) {
        y = Scan <num_scan_inputs = 2, body = f (float[2] v, float[2] p, float[2] q) => (float[2] w) { w = Exp(v) }>
            (x, a, b)
    }"""
    assert len(body_of(trimmed(text), "Scan")[0].inputs) == 2


def test_loops_that_leave_inputs_out_stay() -> None:
    text = """g (float[N] x) => (float[N] y) <int64 n = {2}, bool go = {1}> {
        y = Loop (n, go, x) < body = f (int64 i, bool c, float[N] v) => (bool d, float[N] w)
                              { d = Identity(c) w = Neg(v) } >
    }"""
    assert ops(trimmed(text)) == ["Loop"]


@pytest.mark.parametrize("kind", ["Scan", "Loop"])
def test_rows_that_are_inputs_of_the_body_are_copied(kind: str) -> None:
    """onnxruntime may leave them unwritten if the body computes no other values."""
    text = """g (float[3, 2] x) => (float[3, 2] y) {
        y, z = Scan<num_scan_inputs = 1, body = f (float[2] v) => (float[2] v, float[2] w) { w = Neg(v) }>(x)
    }"""
    if kind == "Loop":
        text = """g (float[2] x) => (int64[3] y) <int64 n = {3}> {
            e, y, z = Loop (n, , x) <
                body = f (int64 i, bool c, float[2] v) => (bool d, float[2] w, int64 i, float[2] w)
                { d = Identity(c) w = Neg(v) } >
        }"""
    model = parse(text)
    run_pipeline(model, "trim-loops,dce")
    _, body = body_of(model, kind)
    row = body.outputs[-1].producer()
    assert row is not None and row.op_type == "Identity"


@pytest.mark.parametrize("form", ["float[2,3] x", "float[a,b] x", "float[] x"])
def test_stacked_output_of_a_loop_that_never_runs_keeps_its_rank(form: str) -> None:
    text = f"""g ({form}, int64 n) => (float[] y, float[] s) {{
        y, s = Loop (n, , x) <
            body = f (int64 i, bool c, float[2,3] v) => (bool d, float[] w, float[] r)
            {{ d = Identity(c)  w = Identity(v)  r = Sin(v) }} > }}"""
    model = parse(text)
    run_pipeline(model, "trim-loops,dce")
    found = run(model, {"x": np.ones((2, 3), np.float32), "n": np.array(0)})
    assert found["s"].shape == (0, 2, 3)
