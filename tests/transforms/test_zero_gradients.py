"""Zero gradients and their computations are removed; annotations of profiled runs are cleared."""

from __future__ import annotations

import pytest

import graphopt
from graphopt import ir
from graphopt.ops import graphopt_operators
from tests.model_testing import ops, parse, run_pipeline

DOMAINS = ', "graphopt.ad" : 1'
REGION = """graphopt.ad.GradOf<body = r () => (float[N] q) {{ c = Cos(x) q = Mul({0}, c) }}> ({0}, x)"""


def lowered(text: str, expected: list[str], pipeline: str = "lower-grad-of,dce") -> ir.Model:
    model = parse(text, domains=DOMAINS)
    run_pipeline(model, pipeline)
    ir.validate(model)
    assert ops(model) == expected
    _, cx = run_pipeline(model, pipeline)
    assert cx.actions == 0
    return model


def test_region_with_gradients_becomes_its_body() -> None:
    text = f"g (float[N] x, float[N] dy) => (float[N] dx) {{ dx = {REGION.format('dy')} }}"
    model = lowered(text, ["Cos", "Mul"])
    plain = parse("g (float[N] x, float[N] dy) => (float[N] dx) { c = Cos(x) dx = Mul(dy, c) }")
    assert graphopt.verify(plain, model, bits=True).ok
    assert ops(lowered(text, ["GradOf"], "specialize-autograd-zero,dce")) == ["GradOf"]


@pytest.mark.parametrize("pipeline", ["lower-grad-of,dce", "specialize-autograd-zero,dce"])
def test_zeros_propagate_through_regions_and_sums(pipeline: str) -> None:
    text = f"""g (float[N] x, float[N] dy) => (float[N] dx) {{
        z = graphopt.ad.Zero(x)
        a = {REGION.format("z")}
        b = graphopt.ad.AutogradAdd(a, z)
        c = graphopt.ad.GradOf<body = s () => (float[N] t) {{ t = Neg(b) }}> (b, x)
        d = graphopt.ad.AutogradAdd(dy, c)
        dx = Neg(d)
    }}"""
    model = lowered(text, ["Neg"], pipeline)
    assert model.graph[0].inputs[0] is model.graph.inputs[1]


def test_one_nonzero_gradient_keeps_a_region() -> None:
    text = """g (float[N] x, float[N] dy) => (float[N] dx) {
        z = graphopt.ad.Zero(x)
        dx = graphopt.ad.GradOf<body = r () => (float[N] q) { q = Sub(dy, z) }> (dy, z, x)
    }"""
    model = lowered(text, ["Shape", "ConstantOfShape", "Sub"])
    plain = parse(
        "g (float[N] x, float[N] dy) => (float[N] dx) { n = Cast<to = 9>(x) a = Not(n) o = And(n, a) "
        "z = CastLike(o, x) dx = Sub(dy, z) }"
    )
    assert graphopt.verify(plain, model).ok


def test_sums_of_gradients() -> None:
    text = "g (float[N] a, float[N] b) => (float[N] y) { y = graphopt.ad.AutogradAdd(a, b) }"
    assert graphopt.verify(
        parse("g (float[N] a, float[N] b) => (float[N] y) { y = Add(a, b) }"),
        lowered(text, ["Add"]),
        bits=True,
    ).ok
    lowered(text, ["AutogradAdd"], "specialize-autograd-zero")
    lowered(text.replace("(a, b) }", "(a, ) }"), ["Identity"])


@pytest.mark.parametrize("dtype", ["float", "double", "float16"])
def test_zeros_with_readers_become_tensors(dtype: str) -> None:
    text = f"g ({dtype}[N,3] x) => ({dtype}[N,3] dx) {{ dx = graphopt.ad.Zero(x) }}"
    model = lowered(text, ["Shape", "ConstantOfShape"])
    plain = parse(
        f"g ({dtype}[N,3] x) => ({dtype}[N,3] dx) {{ n = Cast<to = 9>(x) a = Not(n) o = And(n, a) "
        f"dx = CastLike(o, x) }}"
    )
    assert graphopt.verify(plain, model).ok
    lowered(text, ["Zero"], "specialize-autograd-zero")


def test_annotated_zeros_and_near_misses() -> None:
    text = "g (float[N] x, float[N] a, float[N] b) => (float[N] y) { y = graphopt.ad.AutogradAdd(a, b) }"
    for note, expected in (("true", ["Identity"]), ("false", ["Add"]), (None, ["Add"])):
        model = parse(text, domains=DOMAINS)
        if note is not None:
            model.graph.inputs[1].metadata_props[graphopt_operators.UNDEFINED] = note
        run_pipeline(model, "lower-grad-of")
        assert ops(model) == expected
    # another domain, and a region with inputs, are not graphopt's
    model = parse(text.replace("graphopt.ad", "other.ad"), domains=', "other.ad" : 1')
    run_pipeline(model, "lower-grad-of")
    assert ops(model) == ["AutogradAdd"]
    text = """g (float[N] x, float[N] dy) => (float[N] dx) {
        dx = graphopt.ad.GradOf<body = r (float[N] p) => (float[N] q) { q = Neg(p) }> (dy, x)
    }"""
    lowered(text, ["GradOf"])


def test_nested_regions_bodies_and_functions() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "graphopt.ad" : 1, "own" : 1]>
    g (float[N] x, float[N] dy, bool p) => (float[N] dx) {
        z = graphopt.ad.Zero(x)
        f = own.Back(x, dy)
        o = graphopt.ad.GradOf<body = r () => (float[N] s) {
            i = graphopt.ad.GradOf<body = q () => (float[N] t) <float[1] k = {2.0}> { t = Mul(dy, k) }> (dy, x)
            j = graphopt.ad.GradOf<body = q2 () => (float[N] t2) { t2 = Exp(z) }> (z, x)
            s = graphopt.ad.AutogradAdd(i, j)
        }> (dy, x)
        dx = If (p) <
            then_branch = a () => (float[N] u) { u = graphopt.ad.AutogradAdd(o, f) },
            else_branch = b () => (float[N] v) { v = graphopt.ad.AutogradAdd(o, z) w = Identity(z) }
        >
    }
    <domain: "own", opset_import: ["" : 17, "graphopt.ad" : 1]>
    Back (x, dy) => (dx) {
        z = graphopt.ad.Zero(x)
        y = graphopt.ad.GradOf<body = r () => (q) { c = Constant<value = float[1] {0.5}>() q = Mul(dy, c) }> (dy, x)
        dx = graphopt.ad.AutogradAdd(y, z)
    }"""
    model = parse(text)
    run_pipeline(model, "lower-grad-of,dce")
    ir.validate(model)
    assert ops(model) == ["Back", "Mul", "If"]
    names = {
        node.op_type
        for graph in ir.graphs_of(model)
        for node in graph
        if node.domain == graphopt_operators.AD_DOMAIN
    }
    assert not names
    plain = parse(
        """g (float[N] x, float[N] dy, bool p) => (float[N] dx) <float[1] k = {2.0}, float[1] h = {0.5}> {
            f = Mul(dy, h) o = Mul(dy, k) s = Add(o, f) dx = Where(p, s, o)
        }"""
    )
    assert graphopt.verify(plain, model).ok


def test_annotations_are_cleared_everywhere() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
    g (float[N] x, bool p) => (float[N] y) <float[1] k = {2.0}> {
        f = own.Twice(x)
        y = If (p) < then_branch = a () => (float[N] u) { u = Mul(f, k) },
                     else_branch = b () => (float[N] v) { v = Neg(f) } >
    }
    <domain: "own", opset_import: ["" : 17]>
    Twice (x) => (y) { y = Add(x, x) }"""
    model = parse(text)
    values = [value for graph in ir.graphs_of(model) for value in ir.values_of(graph)]
    assert len(values) == 9
    for value in values:
        notes = {
            f"{graphopt_operators.PROFILE_NOTES}shape": "2",
            graphopt_operators.UNDEFINED: "true",
            "own": "stays",
        }
        value.metadata_props.update(notes)
    run_pipeline(model, "clear-profile")
    assert all(set(value.metadata_props) == {graphopt_operators.UNDEFINED, "own"} for value in values)
    _, cx = run_pipeline(model, "clear-undefinedness")
    assert all(set(value.metadata_props) == {"own"} for value in values)
    assert cx.edit.counts == {"forget": len(values)}
    _, cx = run_pipeline(model, "clear-profile,clear-undefinedness")
    assert cx.edit.epoch == 0


def test_unread_zeros_are_removed_without_dce() -> None:
    """onnxruntime rejects a model with a zero gradient, read or not."""
    text = f"""g (float[N] x, float[N] dy) => (float[N] dx) {{
        z = graphopt.ad.Zero(x)
        a = {REGION.format("z")}
        dx = graphopt.ad.AutogradAdd(a, dy)
    }}"""
    model = lowered(text, ["Identity"], "fallback")
    assert graphopt.verify(
        parse("g (float[N] x, float[N] dy) => (float[N] dx) { dx = Identity(dy) }"), model
    ).ok
