"""merge-ifs and sink-into-ifs make fewer Ifs and views, and change no result."""

from __future__ import annotations

import numpy as np
import pytest

from graphopt import ir
from graphopt.numerics import Numerics
from graphopt.verification.verifier import verify
from tests.autodiff.models import run
from tests.support import ops, parse, run_pipeline


def _optimized(text: str, pipeline: str, **header: int) -> ir.Model:
    """``text`` after ``pipeline``, which must leave every bit of its results."""
    original, model = parse(text, **header), parse(text, **header)
    run_pipeline(model, pipeline)
    ir.verify(model)
    verdict = verify(original, model, numerics=Numerics.EXACT)
    assert verdict.ok, verdict.failures
    assert verdict.rows
    return model


def _branches(node: ir.Node) -> list[list[str]]:
    return [[inner.op_type for inner in body] for body in ir.bodies(node)]


def test_ifs_on_one_condition_merge_and_the_second_reads_what_the_first_returns() -> None:
    model = _optimized(
        """g (float[N] x, bool c) => (float[N] y, float[N] z) {
            y = If (c) < then_branch = t () => (float[N] t1) { t1 = Neg(x) },
                         else_branch = e () => (float[N] e1) { e1 = Abs(x) } >
            z = If (c) < then_branch = t2 () => (float[N] t3) { t3 = Exp(y) },
                         else_branch = e2 () => (float[N] e3) { e3 = Add(x, y) } >
        }""",
        "merge-ifs",
    )
    assert ops(model) == ["If"]
    (node,) = model.graph
    assert _branches(node) == [["Neg", "Exp"], ["Abs", "Add"]]
    assert [value.name for value in model.graph.outputs] == ["y", "z"]


def test_ifs_merge_where_the_second_stands_if_only_later_nodes_read_the_first() -> None:
    model = _optimized(
        """g (float[N] x, bool c) => (float[N] y, float[N] z) {
            a = If (c) < then_branch = t () => (float[N] t1) { t1 = Neg(x) },
                         else_branch = e () => (float[N] e1) { e1 = Abs(x) } >
            b = Exp(x)
            z = If (c) < then_branch = t2 () => (float[N] t3) { t3 = Exp(b) },
                         else_branch = e2 () => (float[N] e3) { e3 = Add(a, b) } >
            y = Relu(a)
        }""",
        "merge-ifs",
    )
    assert ops(model) == ["Exp", "If", "Relu"]


def test_ifs_that_need_each_other_through_other_nodes_stay_apart() -> None:
    model = _optimized(
        """g (float[N] x, bool c, bool d) => (float[N] z, float[N] w) {
            a = If (c) < then_branch = t () => (float[N] t1) { t1 = Neg(x) },
                         else_branch = e () => (float[N] e1) { e1 = Abs(x) } >
            b = Exp(a)
            z = If (c) < then_branch = t2 () => (float[N] t3) { t3 = Exp(b) },
                         else_branch = e2 () => (float[N] e3) { e3 = Add(x, b) } >
            w = If (d) < then_branch = t4 () => (float[N] t5) { t5 = Sin(x) },
                         else_branch = e4 () => (float[N] e5) { e5 = Cos(x) } >
        }""",
        "merge-ifs",
    )
    assert ops(model) == ["If", "Exp", "If", "If"]


def test_three_ifs_with_inner_ifs_and_initializers_in_branches_merge() -> None:
    inner = (
        "If (d) < then_branch = p () => (float[N] {0}p) {{ {0}p = Mul(x, {0}w) }},"
        " else_branch = q () => (float[N] {0}q) {{ {0}q = Neg({0}r) }} >"
    )
    text = "g (float[N] x, bool c, bool d) => (float[N] y0, float[N] y1, float[N] y2) {\n"
    for i in range(3):
        body = inner.format(f"v{i}").replace(f"v{i}w", "x").replace(f"Neg(v{i}r)", f"Sub(x, k{i})")
        text += f"""
            y{i} = If (c) < then_branch = t () => (float[N] t{i}) <float[1] k{i} = {{{i}.0}}> {{ t{i} = {body} }},
                            else_branch = e () => (float[N] e{i}) {{ e{i} = Identity(x) }} >"""
    model = _optimized(text + "}", "merge-ifs")
    assert ops(model) == ["If"]
    (node,) = model.graph
    assert _branches(node) == [["If"], ["Identity"] * 3]


VIEWED = """g (float[N, 4] x, bool c) => ({type} y) {{
    a = If (c) < then_branch = t () => (t1) {{ t1 = Identity(x) }},
                 else_branch = e () => (e1) {{ k = Constant<value_ints = [1]>() e1 = Unsqueeze(x, k) }} >
    z = Constant<value_ints = [0]>()
    y = {view}
}}"""


def test_a_view_sinks_into_branches_that_pass_on_or_view_themselves() -> None:
    model = _optimized(VIEWED.format(type="y_type", view="Unsqueeze(a, z)").replace("y_type", "float"), "O1")
    assert "Unsqueeze" not in ops(model)
    node = next(node for node in model.graph if node.op_type == "If")
    assert [[op for op in branch if op != "Constant"] for branch in _branches(node)] == [["Unsqueeze"]] * 2


@pytest.mark.parametrize("view", ["Exp(a)", "Transpose(a)", "Expand(a, z)"])
def test_what_does_not_join_the_ends_of_branches_stays_behind(view: str) -> None:
    model = parse(VIEWED.format(type="float", view=view))
    run_pipeline(model, "sink-into-ifs")
    assert ops(model)[-1] == view.partition("(")[0]


def test_a_view_stays_where_others_read_the_if_or_its_shape_is_computed_later() -> None:
    for text in (
        """g (float[N, 4] x, bool c) => (float y, float w) {
            a = If (c) < then_branch = t () => (t1) { t1 = Identity(x) },
                         else_branch = e () => (e1) { e1 = Flatten(x) } >
            y = Flatten<axis = 0>(a)
            w = Exp(a)
        }""",
        """g (float[N, 4] x, bool c) => (float y) {
            a = If (c) < then_branch = t () => (t1) { t1 = Identity(x) },
                         else_branch = e () => (e1) { e1 = Flatten(x) } >
            s = Shape(x)
            y = Reshape(a, s)
        }""",
        """g (float[N, 4] x, bool c) => (float y, float z) {
            a, b = If (c) < then_branch = t () => (t1, t1) { t1 = Flatten(x) },
                            else_branch = e () => (e1, e2) { e1 = Flatten(x) e2 = Exp(x) } >
            y = Flatten<axis = 0>(a)
            z = Neg(b)
        }""",
    ):
        model = parse(text)
        run_pipeline(model, "sink-into-ifs")
        assert "Flatten" in ops(model) or "Reshape" in ops(model)


def test_views_sink_through_nested_ifs_and_function_bodies() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "f" : 1]>
        g (float[N, 4] x, bool c, bool d) => (float y) { y = f.views(x, c, d) }
        <domain: "f", opset_import: ["" : 17]> views (x, c, d) => (y) {
            a = If (c) <
                then_branch = t () => (t1) {
                    t1 = If (d) < then_branch = p () => (p1) { p1 = Identity(x) },
                                  else_branch = q () => (q1) { q1 = Flatten(x) } >
                },
                else_branch = e () => (e1) { e1 = Identity(x) }
            >
            b = Identity(a)
            y = Flatten<axis = 0>(b)
        }"""
    original, model = parse(text), parse(text)
    run_pipeline(model, "O1")
    assert verify(original, model, numerics=Numerics.EXACT).ok
    assert np.prod([len(function) for function in model.functions.values()]) >= 1


@pytest.mark.parametrize("wide", [True, False])
def test_the_width_of_one_branch_is_not_taken_for_that_of_the_other(wide: bool) -> None:
    text = """g (float[2,6] x, int64[3] dims, bool c) => (int64[2] s, float[2,w] y)
        <int64[1] zero = {0}, int64[1] one = {1}, int64[1] four = {4}> {
            v = If (c) < then_branch = t () => (float[2,4] t1) { t1 = Slice(x, zero, four, one) },
                         else_branch = e () => (float[2,0] e1) { e1 = Slice(x, zero, zero, one) } >
            s = Shape(v)
            y = If (c) < then_branch = t2 () => (float[2,w] t2) { t2 = Identity(v) },
                         else_branch = e2 () => (float[2,w] e2) {
                            none = Slice(x, zero, zero, one)  turned = Transpose(none)
                            more = Unsqueeze(turned, zero)  all = Expand(more, dims)
                            shaped = Reshape(all, s)  e2 = Exp(shaped) } >
        }"""
    model = parse(text)
    run_pipeline(model, "peephole,constant-propagation")
    feeds = {"x": np.ones((2, 6), np.float32), "dims": np.array([1, 0, 2]), "c": np.array(wide)}
    assert run(model, feeds)["s"].tolist() == [2, 4 if wide else 0]


def test_what_a_loop_gathers_that_never_runs_keeps_the_rank_that_a_branch_declares() -> None:
    text = """g (float[] x, int64 n, bool go) => (float[] y) {
        y = Loop (n, go) <body = f (int64 i, bool c) => (bool d, float[] r) {
            d = Identity(c)  yes = Constant <value = bool {1}>()
            r = If (yes) < then_branch = t () => (float[2,3] t1) { t1 = Sin(x) },
                           else_branch = e () => (float[2,3] e1) { e1 = Cos(x) } > }> }"""
    model = parse(text)
    run_pipeline(model, "fold-if")
    assert [node.op_type for node in ir.walk_nodes(model.graph)].count("If") == 0
    feeds = {"x": np.ones((2, 3), np.float32), "n": np.array(0), "go": np.array(True)}
    assert run(model, feeds)["y"].shape == (0, 2, 3)


def _row(count: int) -> ir.Model:
    """So many Ifs on one condition, each of which reads the one before."""
    lines = [
        f"v{i} = If (c) < then_branch = t () => (float[N] t{i}) {{ t{i} = Sin({f'v{i - 1}' if i else 'x'}) }},"
        f" else_branch = e () => (float[N] e{i}) {{ e{i} = Cos({f'v{i - 1}' if i else 'x'}) }} >"
        for i in range(count)
    ]
    return parse(f"g (float[N] x, bool c) => (float[N] v{count - 1}) {{" + "\n".join(lines) + "}")


def test_work_of_merging_grows_with_the_number_of_ifs() -> None:
    edits = []
    for count in (200, 400):
        model = _row(count)
        _, cx = run_pipeline(model, "merge-ifs")
        (node,) = model.graph
        assert len(node.outputs) == 1
        names = [value.name or "" for body in ir.bodies(node) for inner in body for value in inner.outputs]
        assert max(map(len, [node.name or "", *names])) < 20
        edits.append(sum(cx.edit.counts.values()))
    assert edits[1] < 2.1 * edits[0]


def test_groups_on_two_conditions_that_read_each_other_stay_in_order() -> None:
    def branches(i: int, first: str, second: str) -> str:
        return (
            f"(c{i % 2}) < then_branch = t () => (float[N] t{i}) {{ t{i} = Add({first}, {second}) }},"
            f" else_branch = e () => (float[N] e{i}) {{ e{i} = Sub({first}, {second}) }} >"
        )

    rng = np.random.default_rng(0)
    for _ in range(6):
        values, lines = ["x"], []
        for i in range(8):
            first, second = (values[-1 - min(int(rng.exponential(2)), len(values) - 1)] for _ in range(2))
            if rng.random() < 0.3:
                lines.append(f"n{i} = Neg({first})")
                values.append(f"n{i}")
            lines.append(f"v{i} = If {branches(i, first, second)}")
            values.append(f"v{i}")
        outputs = ", ".join(f"float[N] {value}" for value in ("v7", "v6", "v3"))
        text = f"g (float[N] x, bool c0, bool c1) => ({outputs}) {{" + "\n".join(lines) + "}"
        _optimized(text, "merge-ifs")
