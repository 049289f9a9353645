"""Gradients through sequences and optionals, which may become tensors."""

from __future__ import annotations

import numpy as np
import pytest

from graphopt import ir
from graphopt.autodiff.joint_graph import COTANGENT, differentiate
from graphopt.errors import UsageError
from tests.autodiff.models import check, run
from tests.model_testing import ops, parse

RANDOM = np.random.default_rng(0)


def numbers(*shape: int) -> np.ndarray:
    return np.asarray(RANDOM.standard_normal(shape))


CHANGED = """m (double[A,B] x, double[A,B] y, double[A,B] z, int64 i) => (double[DIMS] r) {
    s = SequenceConstruct(x, y, z) a = SequenceAt(s, i) b = Exp(a)
    c = SequenceInsert(s, b, i) d = SequenceErase(c) e = ConcatFromSequence<axis = AXIS, new_axis = NEW>(d)
    r = Mul(e, e) }"""


@pytest.mark.parametrize("place", [0, 2, -1])
@pytest.mark.parametrize(("axis", "new"), [(0, 0), (-1, 0), (1, 1)])
def test_sequences_with_computed_positions(place: int, axis: int, new: int) -> None:
    dims = "P,Q,R" if new else "P,Q"
    text = CHANGED.replace("AXIS", str(axis)).replace("NEW", str(new)).replace("DIMS", dims)
    joint = check(text, {**{name: numbers(2, 3) for name in "xyz"}, "i": np.array(place)})
    assert "SequenceErase" in ops(joint)


def test_static_sequences_become_tensors() -> None:
    text = """m (double[4,3] x) => (double[2,3] y) {
        two = Constant<value = int64 {2}>() one = Constant<value = int64 {1}>()
        zero = Constant<value = int64 {0}>() s = SplitToSequence<axis = 0>(x, two)
        a = SequenceAt(s, zero) b = SequenceAt(s, one) y = Mul(a, b) }"""
    joint = check(text, {"x": numbers(4, 3)})
    assert not any("Sequence" in name for name in ops(joint))


@pytest.mark.parametrize(
    ("split", "attributes", "place"),
    [
        ("[2,3]", "axis = 1", -1),
        ("2", "axis = -1", 2),
        ("", "axis = 1", 3),
        ("", "axis = 1, keepdims = 0", 3),
    ],
)
def test_split_to_sequence(split: str, attributes: str, place: int) -> None:
    given = np.array(eval(split)) if split else np.array([1])
    text = f"""m (double[A,B] x, int64{"[K]" if given.ndim else ""} p, int64 i) => (double[P,Q] r) {{
        s = SplitToSequence<{attributes}>(x{", p" if split else ""}) a = SequenceAt(s, i) r = Exp(a) }}"""
    text = text.replace("[P,Q]", "[P]") if "keepdims" in attributes else text
    check(text, {"x": numbers(2, 5), "p": given, "i": np.array(place)})


LIST = """m (double[A,B] x, double[B] w, int64 n) => (double[P,Q] r) {
    e = SequenceEmpty<dtype = 11>()
    h, s = Loop(n, , x, e) <body = g (int64 i, bool ci, double[X,Y] hi, seq(double[]) si)
        => (bool co, double[X2,Y2] ho, seq(double[]) so) {
            zero = Constant<value = int64 {0}>() a = Mul(hi, w) t = Tanh(a) GROWS so = INSERT
            co = Identity(ci) }>
    r = ConcatFromSequence<axis = 0>(s) }"""


@pytest.mark.parametrize("grows", ["ho = Identity(t)", "ho = Concat<axis = 0>(t, x)"])
@pytest.mark.parametrize("insert", ["SequenceInsert(si, ho)", "SequenceInsert(si, ho, zero)"])
def test_sequence_filled_by_a_loop(grows: str, insert: str) -> None:
    text = LIST.replace("GROWS", grows).replace("INSERT", insert)
    for trips in (1, 3):
        check(text, {"x": numbers(2, 3), "w": numbers(3), "n": np.array(trips)})


@pytest.mark.parametrize("taken", [True, False])
def test_sequences_returned_by_branches(taken: bool) -> None:
    text = """m (double[A,B] x, double[A,B] y, bool c) => (double[P,Q] r) {
        e = SequenceConstruct(x, y)
        s = If(c) <
            then_branch = t () => (seq(double[]) q) { q = SequenceInsert(e, x) },
            else_branch = u () => (seq(double[]) p) { a = Exp(x) b = Mul(a, y) p = SequenceConstruct(a, b) }>
        r = ConcatFromSequence<axis = 0>(s) }"""
    check(text, {"x": numbers(2, 3), "y": numbers(2, 3), "c": np.array(taken)})


def test_sequence_map() -> None:
    text = """m (double[A,B] x, double[A,B] y, double[B] w) => (double[P,Q] r) {
        e = SequenceConstruct(x, y) f = SequenceConstruct(y, x)
        s, u = SequenceMap(e, f, w) <
            body = g (double[X,Y] a, double[Z,Q] b, double[B] v) => (double[F,G] c, double[H,I] d) {
                k = Mul(a, b) l = Mul(k, v) c = Mul(l, w) d = Sin(a) }>
        o = ConcatFromSequence<axis = 0>(s) p = ConcatFromSequence<axis = 0>(u)
        r = Concat<axis = 0>(o, p) }"""
    check(text, {"x": numbers(2, 3), "y": numbers(2, 3), "w": numbers(3)})


def test_optionals() -> None:
    text = """m (double[A,B] x) => (double[P,Q] r, bool h) {
        e = Sin(x) o = Optional(e) h = OptionalHasElement(o) g = OptionalGetElement(o) r = Exp(g) }"""
    check(text, {"x": numbers(2, 3)})


def test_gradient_of_a_sequence_is_a_sequence() -> None:
    text = """m (seq(float[N]) s, int64 i) => (float[N] y, seq(float[N]) t) {
        a = SequenceAt(s, i) y = Mul(a, a) t = SequenceErase(s) }"""
    joint = differentiate(parse(text), ["y"], ["s"])
    ir.validate(joint.model)
    x = [np.array([1.0, 2.0], np.float32), np.array([3.0], np.float32)]
    feeds = {"s": x, "i": np.array(-2), f"{COTANGENT}y": np.ones(2, np.float32)}
    found = run(joint.model, feeds)["grad.s"]
    assert [item.tolist() for item in found] == [[2, 4], [0]]
    with pytest.raises(UsageError, match="'t' is a sequence"):
        differentiate(parse(text), ["t"], ["s"])
