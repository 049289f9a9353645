"""The pass sink-into-ifs."""

from __future__ import annotations

import numpy as np
import pytest

from graphopt import ir
from graphopt.numerics import Numerics
from graphopt.verification.verifier import verify
from tests.autodiff.models import run
from tests.model_testing import ops, parse, run_pipeline


def _optimized(text: str, pipeline: str, **header: int) -> ir.Model:
    """``text`` after ``pipeline``, which must keep every bit of the results."""
    original, model = parse(text, **header), parse(text, **header)
    run_pipeline(model, pipeline)
    ir.validate(model)
    verdict = verify(original, model, numerics=Numerics.EXACT)
    assert verdict.ok, verdict.failures
    assert verdict.rows
    return model


def _branches(node: ir.Node) -> list[list[str]]:
    return [[inner.op_type for inner in body] for body in ir.bodies(node)]


VIEWED = """g (float[N, 4] x, bool c) => ({type} y) {{
    a = If (c) < then_branch = t () => (t1) {{ t1 = Identity(x) }},
                 else_branch = e () => (e1) {{ k = Constant<value_ints = [1]>() e1 = Unsqueeze(x, k) }} >
    z = Constant<value_ints = [0]>()
    y = {view}
}}"""


def test_view_sinks_into_branches_that_end_in_identity_or_view() -> None:
    model = _optimized(VIEWED.format(type="y_type", view="Unsqueeze(a, z)").replace("y_type", "float"), "O1")
    assert "Unsqueeze" not in ops(model)
    node = next(node for node in model.graph if node.op_type == "If")
    assert [[op for op in branch if op != "Constant"] for branch in _branches(node)] == [["Unsqueeze"]] * 2


@pytest.mark.parametrize("view", ["Exp(a)", "Transpose(a)", "Expand(a, z)"])
def test_other_operators_do_not_sink(view: str) -> None:
    model = parse(VIEWED.format(type="float", view=view))
    run_pipeline(model, "sink-into-ifs")
    assert ops(model)[-1] == view.partition("(")[0]


def test_view_stays_if_the_if_has_other_readers_or_the_shape_is_computed_later() -> None:
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
def test_branches_of_different_widths(wide: bool) -> None:
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


def test_stacked_output_of_a_loop_without_trips_keeps_its_rank() -> None:
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
