"""Gradients through nested If, Loop and Scan, compared with finite differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from graphopt import ir
from graphopt.autodiff.joint_graph import COTANGENT, differentiate
from graphopt.autodiff.rule_registry import NoGradient
from tests.autodiff.models import check, run
from tests.model_testing import ops, parse

RANDOM = np.random.default_rng(0)


def numbers(*shape: int) -> np.ndarray:
    return np.asarray(RANDOM.standard_normal(shape))


def yes(value: bool) -> np.ndarray:
    return np.array(value)


BRANCHES = """m (double[A,B] x, double[B] w, bool c) => (double[C,D] y) { z = Exp(x) y = If(c) <
    then_branch = t () => (double[P,Q] a) { b = Mul(z, w) k = Sin(b) a = Mul(k, b) },
    else_branch = e () => (double[R,S] d) { d = Identity(z) }> }"""

RECURRENCE = """m (double[B,C] h0, double[C,C] w, double[C] b, int64 n) => (double[B,C] h, double[T,B,C] ys) {
    k = Constant<value = bool {1}>()
    h, ys = Loop(n, k, h0) <body = g (int64 i, bool ci, double[P,Q] hi)
        => (bool co, double[R,S] ho, double[U,V] yo) {
            m = MatMul(hi, w) s = Add(m, b) ho = Tanh(s) yo = Sin(ho) co = Identity(ci) }> }"""

SCAN = """m (double[B] s0, double[B,T] x, double[T,B] z, double[B] w)
    => (double[B] s, double[B,T] ys, double[T,B] us) {
    s, ys, us = Scan(s0, x, z) <num_scan_inputs = 2, scan_input_axes = [AXIS, 0],
        scan_input_directions = [0, 1], scan_output_axes = [AXIS, 0], scan_output_directions = [1, 0],
        body = g (double[P] si, double[Q] xi, double[R] zi) => (double[K] so, double[L] yo, double[M] uo) {
            a = Mul(si, xi) b = Add(a, zi) so = Mul(b, w) yo = Sin(so) uo = Mul(so, zi) }> }"""


@pytest.mark.parametrize("taken", [True, False])
def test_taken_branch(taken: bool) -> None:
    joint = check(BRANCHES, {"x": numbers(2, 3), "w": numbers(3), "c": yes(taken)})
    assert ops(joint).count("If") == 2
    check(BRANCHES, {"x": numbers(0, 3), "w": numbers(3), "c": yes(taken)})


@pytest.mark.parametrize("taken", [True, False])
def test_branches_of_different_ranks_and_nested_if(taken: bool) -> None:
    text = """m (double[A] x, double[A] w, bool c, bool d) => (double[P] y, double[Q,R] z) {
        y, z = If(c) <
            then_branch = t () => (double[P1] a, double[Q1,R1] b) { a, b = If(d) <
                then_branch = tt () => (double[P3] e, double[Q3,R3] f) {
                    e = Mul(x, w) o = Constant<value = int64[1] {0}>() f = Unsqueeze(e, o) },
                else_branch = te () => (double[P4] g, double[Q4,R4] h) {
                    g = Sin(x) p = Constant<value = int64[1] {1}>() h = Unsqueeze(w, p) }> },
            else_branch = e () => (double[P2] i, double[Q2,R2] j) {
                i = Concat<axis = 0>(x, w, w) q = Constant<value = int64[2] {1, -1}>() j = Reshape(i, q) }> }"""
    for inner in (True, False):
        check(text, {"x": numbers(3), "w": numbers(3), "c": yes(taken), "d": yes(inner)})


def test_branches_without_dependence_add_no_nodes() -> None:
    text = """m (float[N] x, float[N] w, bool c) => (float[N] y) { y = If(c) <
        then_branch = t () => (float[N] a) { f = Floor(w) a = Mul(x, f) },
        else_branch = e () => (float[N] b) { b = Identity(x) }> }"""
    joint = differentiate(parse(text), ["y"], ["w"])
    assert joint.unrelated == ["w"] and ops(joint.model).count("If") == 1
    assert [item.op for item in joint.stopped] == ["Floor"]


@pytest.mark.parametrize("trips", [0, 1, 4])
def test_recurrence(trips: int) -> None:
    for batch in (2, 0):
        feeds = {"h0": numbers(batch, 3), "w": numbers(3, 3), "b": numbers(3), "n": np.array(trips)}
        joint = check(RECURRENCE, feeds)
    (forward, backward) = [node for node in joint.graph if node.op_type == "Loop"]
    assert len(forward.outputs) == 4, "the states and the products are saved"
    inside = [node.op_type for node in ir.bodies(backward)[0]]
    assert inside.count("Gemm") + inside.count("MatMul") == 2, "the product is not computed again"


@pytest.mark.parametrize("trips", [0, 2, 5])
def test_loop_over_slices_of_a_tensor(trips: int) -> None:
    text = """m (double[B,C] h0, double[T,B,C] x, double[T,B,C] z, int64 n) => (double[B,C] h) {
        h = Loop(n, , h0) <body = g (int64 i, bool ci, double[P,Q] hi) => (bool co, double[R,S] ho) {
            xi = Gather(x, i) zi = Gather(z, i) again = Gather(x, i) last = Gather(z, two)
            a = Mul(hi, xi) b = Mul(zi, last) c = Mul(b, again) d = Add(a, c) ho = Sin(d)
            co = Identity(ci) }> }"""
    text = text.replace("h = Loop", "two = Constant<value = int64 {2}>() h = Loop")
    feeds = {"h0": numbers(2, 3), "x": numbers(5, 2, 3), "z": numbers(5, 2, 3), "n": np.array(trips)}
    joint = check(text, feeds)
    (_, backward) = [node for node in joint.graph if node.op_type == "Loop"]
    inside = [node.op_type for node in ir.bodies(backward)[0]]
    assert inside.count("ScatterElements") == 1, "for z at i, and none for x"


def test_only_requested_gradients_are_carried() -> None:
    joint = differentiate(parse(RECURRENCE), ["h"], ["b"])
    (_, backward) = [node for node in joint.model.graph if node.op_type == "Loop"]
    assert len(backward.outputs) == 2, "the state and b"
    joint = differentiate(parse(RECURRENCE.replace("Add(m, b)", "Add(hi, b)")), ["ys"], ["b"])
    assert joint.unrelated == [], joint


@pytest.mark.parametrize("limit", [0.5, 4.0, 100.0])
def test_loop_that_ends_by_its_condition(limit: float) -> None:
    text = """m (double[N] x, double[N] w, double limit) => (double[N] y, double[T] sums) {
        k = Constant<value = bool {1}>()
        y, sums = Loop( , k, x) <body = g (int64 i, bool ci, double[P] hi)
            => (bool co, double[Q] ho, double s) {
                f = CastLike(i, limit) a = Mul(hi, w) b = Mul(a, f) ho = Add(b, hi)
                s = ReduceSumSquare<keepdims = 0>(ho) small = Less(s, limit)
                most = Constant<value = int64 {5}>() few = Less(i, most) co = And(small, few) }> }"""
    check(text, {"x": numbers(3) / 3, "w": numbers(3), "limit": np.array(limit)})


@pytest.mark.parametrize("trips", [0, 1, 4])
def test_growing_state(trips: int) -> None:
    text = """m (double[N] x, double[1] w, int64 n) => (double[M] y) {
        y = Loop(n, , x) <body = g (int64 i, bool ci, double[P] hi) => (bool co, double[Q] ho) {
            a = Mul(hi, hi) b = Mul(a, w) c = Sin(b) ho = Concat<axis = 0>(c, w) co = Identity(ci) }> }"""
    check(text, {"x": numbers(2), "w": numbers(1), "n": np.array(trips)})


def test_swapped_and_unchanged_states() -> None:
    text = """m (double[N] x, double[N] w, int64 n) => (double[N] a, double[N] b, double[N] c, int64 k) {
        one = Constant<value = int64 {1}>()
        a, b, c, k = Loop(n, , x, x, w, one) <body = g
            (int64 i, bool ci, double[P] ai, double[Q] bi, double[R] fixed, int64 ki)
            => (bool co, double[P2] ao, double[Q2] bo, double[R2] fo, int64 ko) {
                ko = Add(ki, i) t = Sin(ai) bo = Mul(t, x) ao = Identity(bi) fo = Identity(fixed)
                co = Identity(ci) }> }"""
    for trips in (0, 1, 3):
        check(text, {"x": numbers(3), "w": numbers(3), "n": np.array(trips)})


@pytest.mark.parametrize("counter", ["int64", "int64[1]"])
def test_nested_bodies(counter: str) -> None:
    text = """m (double[B,C] x, double[B,C] w, int64 n) => (double[B,C] y, double[T,B,C] z) {
        y, z = Loop(n, , x) <body = g (int64 i, bool ci, double[P,Q] hi)
            => (bool co, double[R,S] ho, double[U,V] zo) {
                two = Constant<value = int64 {2}>() zero = Constant<value = int64 {0}>()
                odd = Mod(i, two) even = Equal(odd, zero) first = Mul(w, hi)
                t = If(even) <
                    then_branch = t () => (double[P2,Q2] a) {
                        s, a = Scan(first, w) <num_scan_inputs = 1,
                            body = s (double[J,K] si, double[L] xi) => (double[M,N] so, double[O] yo) {
                                e = Mul(si, xi) so = Sin(e) p = Mul(so, so)
                                at = Constant<value = int64[1] {0}>() yo = ReduceSum<keepdims = 0>(p, at) }> },
                    else_branch = e () => (double[P3,Q3] b) {
                        b = Loop(i, , hi) <body = l (COUNTER j, bool cj, double[X,Y] gi)
                            => (bool ck, double[V2,W2] go) {
                                f = CastLike(j, gi) m = Mul(gi, first) k = Mul(m, f) go = Tanh(k)
                                ck = Identity(cj) }> }>
                ho = Tanh(t) zo = Mul(ho, hi) co = Identity(ci) }> }"""
    text = text.replace("COUNTER", counter)
    check(text, {"x": numbers(2, 3), "w": numbers(2, 3), "n": np.array(4)})


@pytest.mark.parametrize("axis", ["1", "-1"])
def test_scan_along_other_axes_and_in_reverse(axis: str) -> None:
    text = SCAN.replace("AXIS", axis)
    for length in (1, 4):
        check(text, {"s0": numbers(3), "x": numbers(3, length), "z": numbers(length, 3), "w": numbers(3)})


def test_constant_initial_state_returned_before_its_update() -> None:
    text = """m (double[T,B] x, double[T,B] w, int64[1] s) => (double[T,B] y) {
        zeros = ConstantOfShape<value = double[1] {0}>(s) last, y = Scan(zeros, x, w) <num_scan_inputs = 2,
        body = g (double[B] c, double[B] a, double[B] b) => (double[B] d, double[B] before) {
            e = Mul(a, c) d = Add(e, b) before = Identity(c) }> }"""
    check(text, {"x": numbers(4, 3), "w": numbers(4, 3), "s": np.array([3])})


def test_scan_whose_gradient_needs_no_saved_values() -> None:
    text = """m (double[B] s0, double[T,B] x, double[B] w) => (double[B] s) {
        s = Scan(s0, x) <num_scan_inputs = 1, body = g (double[P] si, double[Q] xi) => (double[R] so) {
            so = Add(si, w) }> }"""
    check(text, {"s0": numbers(3), "x": numbers(4, 3), "w": numbers(3)})


def test_constants_in_bodies_are_not_duplicated() -> None:
    big = ", ".join(f"{number:.3f}" for number in numbers(30).tolist())
    text = f"""m (double[30] x, int64 n) => (double[30] y) {{
        y = Loop(n, , x) <body = g (int64 i, bool ci, double[P] hi) => (bool co, double[Q] ho)
            <double[30] weights = {{{big}}}> {{ a = Mul(hi, weights) ho = Sin(a) co = Identity(ci) }}> }}"""
    joint = check(text, {"x": numbers(30), "n": np.array(3)})
    held = [value for graph in ir.graphs_of(joint) for value in graph.initializers.values()]
    assert sum(value.const_value is not None and value.const_value.size == 30 for value in held) == 1


@pytest.mark.parametrize("opset", [13, 16, 21, 26])
def test_opsets(opset: int) -> None:
    check(BRANCHES, {"x": numbers(2, 3), "w": numbers(3), "c": yes(True)}, opset=opset)
    feeds = {"h0": numbers(2, 3), "w": numbers(3, 3), "b": numbers(3), "n": np.array(3)}
    check(RECURRENCE, feeds, opset=opset)
    feeds = {"s0": numbers(3), "x": numbers(3, 4), "z": numbers(4, 3), "w": numbers(3)}
    check(SCAN.replace("AXIS", "1"), feeds, opset=opset)


DRAWN = {
    "If": """m (float[N] x, bool c, int64 n) => (float[N] y) { y = If(c) <
        then_branch = t () => (float[P] a) { r = RandomUniformLike<low=0.5, high=1.5>(x) a = Mul(r, x) },
        else_branch = e () => (float[Q] d) { d = Identity(x) }> }""",
    "Loop": """m (float[N] x, bool c, int64 n) => (float[N] y) {
        y = Loop(n, c, x) <body = g (int64 i, bool ci, float[P] hi) => (bool co, float[Q] ho) {
            r = RandomUniformLike<low=0.5, high=1.5>(hi) ho = Mul(r, hi) co = Identity(ci) }> }""",
    "If in Loop": """m (float[N] x, bool c, int64 n) => (float[N] y) {
        y = Loop(n, c, x) <body = g (int64 i, bool ci, float[P] hi) => (bool co, float[Q] ho) {
            two = Constant<value = int64 {2}>() one = Constant<value = int64 {1}>()
            odd = Mod(i, two) is = Equal(odd, one) ho = If(is) <
                then_branch = t () => (float[P2] a) { r = RandomUniformLike<low=0.5, high=1.5>(hi) a = Mul(r, hi) },
                else_branch = e () => (float[Q2] d) { d = Neg(hi) }>
            co = Identity(ci) }> }""",
    "Loop in Scan": """m (float[N] x, bool c, int64 n) => (float[N] y) {
        one = Constant<value = float {1}>() three = Constant<value = int64[1] {3}>() xs = Expand(one, three)
        y = Scan(x, xs) <num_scan_inputs = 1, body = s (float[P3] si, float u) => (float[Q3] so) {
            two = Constant<value = int64 {2}>()
            so = Loop(two, , si) <body = g (int64 i, bool ci, float[P] hi) => (bool co, float[Q] ho) {
                r = RandomUniformLike<low=0.5, high=1.5>(hi) ho = Mul(r, hi) co = Identity(ci) }> }> }""",
}


@pytest.mark.parametrize("kind", DRAWN)
def test_random_numbers_in_bodies_are_saved(kind: str) -> None:
    joint = differentiate(parse(DRAWN[kind]), ["y"], ["x"])
    x = np.array([1.0, 2.0, 3.0], np.float32)
    feeds = {"x": x, "c": yes(True), "n": np.array(3), f"{COTANGENT}y": np.ones(3, np.float32)}
    for optimizations in ("off", "default"):
        found = run(joint.model, feeds, optimizations)
        assert np.allclose(found["grad.x"], found["y"] / x, rtol=1e-5)
        assert len(set(np.abs(found["grad.x"]).tolist())) == 3


def test_random_numbers_of_changing_shape_are_refused() -> None:
    text = """m (float[N] x, int64 n) => (float[M] y) {
        y = Loop(n, , x) <body = g (int64 i, bool ci, float[P] hi) => (bool co, float[Q] ho) {
            r = RandomUniformLike(hi) a = Mul(r, hi) ho = Concat<axis = 0>(a, x) co = Identity(ci) }> }"""
    with pytest.raises(NoGradient, match="its body draws random numbers whose shape may change"):
        differentiate(parse(text), ["y"], ["x"])


def test_states_of_changing_shape_with_random_numbers_are_refused() -> None:
    text = """m (float[N] x, int64 n) => (float[M] y) {
        y = Loop(n, , x) <body = g (int64 i, bool ci, float[P] hi) => (bool co, float[Q] ho) {
            r = RandomUniformLike(x) a = Mul(hi, hi) ho = Concat<axis = 0>(a, r) co = Identity(ci) }> }"""
    with pytest.raises(NoGradient, match="a carried value may change its shape between iterations"):
        differentiate(parse(text), ["y"], ["x"])


def test_shared_cotangent_of_two_values() -> None:
    text = """m (double[N] x, double[N] w, bool c) => (double[N] y) { y = If(c) <
        then_branch = t () => (double[P] a) { b = Add(x, w) a = Exp(b) },
        else_branch = e () => (double[Q] d) { f = Mul(x, w) d = Exp(f) }> }"""
    for taken in (True, False):
        check(text, {"x": numbers(3), "w": numbers(3), "c": yes(taken)})


def test_body_that_returns_a_value_twice() -> None:
    """onnxruntime returns nothing for the second output, but the correct gradient."""
    text = """m (float[N] x, bool c) => (float[N] y, float[N] z) { y, z = If(c) <
        then_branch = t () => (float[P] a, float[P] a) { a = Exp(x) },
        else_branch = e () => (float[Q] d, float[Q] f) { d = Sin(x) f = Neg(x) }> }"""
    joint = differentiate(parse(text), ["y", "z"], ["x"])
    given = {f"{COTANGENT}{name}": np.full(2, value, np.float32) for name, value in (("y", 2), ("z", 3))}
    for taken, truth in ((True, 5), (False, -1)):
        assert (
            run(joint.model, {"x": np.zeros(2, np.float32), "c": yes(taken), **given})["grad.x"].tolist()
            == [truth] * 2
        )


def test_dropout_in_a_body() -> None:
    text = """m (float[N] x, int64 n) => (float[N] y) {
        ratio = Constant<value = float {0.5}>() yes = Constant<value = bool {1}>()
        y = Loop(n, , x) <body = g (int64 i, bool ci, float[P] hi) => (bool co, float[Q] ho) {
            d = Dropout(hi, ratio, yes) ho = Add(d, x) co = Identity(ci) }> }"""
    joint = differentiate(parse(text), ["y"], ["x"])
    x = np.full(8, 1.0, np.float32)
    feeds = {"x": x, "n": np.array(3), f"{COTANGENT}y": np.ones(8, np.float32)}
    found = run(joint.model, feeds)
    assert np.allclose(found["grad.x"], found["y"]), "y is linear in x"


SECOND: dict[str, tuple[str, dict[str, Any]]] = {
    "If": (BRANCHES, {"x": (2, 3), "w": (3,), "c": yes(True)}),
    "Loop": (RECURRENCE, {"h0": (2, 3), "w": (3, 3), "b": (3,), "n": np.array(2)}),
    "Scan": (SCAN.replace("AXIS", "1"), {"s0": (3,), "x": (3, 2), "z": (2, 3), "w": (3,)}),
}


@pytest.mark.parametrize("kind", SECOND)
def test_second_derivatives(kind: str) -> None:
    text, shapes = SECOND[kind]
    feeds = {name: numbers(*shape) if isinstance(shape, tuple) else shape for name, shape in shapes.items()}
    real = [name for name, value in feeds.items() if value.dtype == np.float64]
    model = parse(text, opset=18)
    outputs = [output.name or "" for output in model.graph.outputs]
    first = differentiate(model, outputs, real)
    plain = run(model, feeds)
    feeds.update({COTANGENT + name: numbers(*plain[name].shape) for name in outputs})
    gradients = list(first.gradients.values())
    second = differentiate(first.model, gradients, real)
    weights = {name: numbers(*feeds[name.partition(".")[2]].shape) for name in gradients}
    found = run(second.model, {**feeds, **{COTANGENT + name: value for name, value in weights.items()}})
    for name in real:
        direction, step = numbers(*feeds[name].shape), 1e-6
        up = run(first.model, {**feeds, name: feeds[name] + step * direction})
        down = run(first.model, {**feeds, name: feeds[name] - step * direction})
        truth = sum(np.sum(weights[y] * (up[y] - down[y])) / (2 * step) for y in gradients)
        gradient = found[second.gradients[name]]
        assert np.isclose(np.sum(gradient * direction), truth, rtol=1e-5, atol=1e-6), name


@pytest.mark.parametrize("taken", [True, False])
def test_second_derivatives_with_a_branch_without_gradient(taken: bool) -> None:
    text = """m (double[A,B] x, bool c) => (double[C,D] y)
        <double[3,1] k = {0.7, -0.2, 0.1}, int64[2] none = {1, 0}, int64[2,1] i = {0, 1}> {
        v = If(c) <then_branch = t () => (double[P,Q] a) { a = Gemm<transB = 1>(x, k, x) },
                   else_branch = e () => (double[R,S] b) { b = Tile(x, none) }>
        z = ScatterND(v, i, v) y = Sin(z) }"""
    check(text, {"x": numbers(2, 1), "c": yes(taken)}, opset=22, twice=True)


def test_functions_called_in_bodies() -> None:
    text = """<ir_version: 8, opset_import: ["" : 18, "local" : 1]>
        m (double[N] x, double[N] w, int64 n) => (double[N] y) {
            y = Loop(n, , x) <body = g (int64 i, bool ci, double[P] hi) => (bool co, double[Q] ho) {
                ho = local.outer(hi, w) co = Identity(ci) }> }
        <domain: "local", opset_import: ["" : 18, "local" : 1]> outer (a, b) => (c) {
            p = local.inner(a, b) s = ReduceSum<keepdims = 0>(p) z = CastLike(s, s) d = Greater(s, z)
            c = If(d) <then_branch = t () => (double[P] e) { e = Mul(p, b) },
                       else_branch = f () => (double[Q] g) { g = local.inner(p, a) }> }
        <domain: "local", opset_import: ["" : 18]> inner (a, b) => (c) { m = Mul(a, b) c = Sin(m) }"""
    check(text, {"x": numbers(3), "w": numbers(3), "n": np.array(2)})
