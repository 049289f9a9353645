"""gather-loop-lists replaces sequences to which Loops append, and no others."""

from __future__ import annotations

import pytest

from graphopt import ir
from tests.model_testing import agree, ops, parse, run_pipeline

SEQUENCES = ("SequenceEmpty", "SequenceInsert", "SequenceAt", "SequenceLength", "ConcatFromSequence")


def gathered(text: str, pipeline: str = "gather-loop-lists,dce", opset: int = 17) -> tuple[ir.Model, str]:
    """The model after ``pipeline``, which computes the same bits, and the reasons of refusals."""
    model, told = parse(text, opset=opset), []

    class Refusals:
        def rewrote(self, *_: object) -> None: ...
        def refused(self, refusal: object) -> None:
            told.append(refusal.reason)  # type: ignore[attr-defined]

        def said(self, *_: object) -> None: ...

    run_pipeline(model, pipeline, observers=(Refusals(),))
    ir.validate(model)
    assert agree(parse(text, opset=opset), model)
    _, cx = run_pipeline(model, pipeline)
    assert cx.actions == 0
    return model, " ".join(told)


def left(model: ir.Model) -> list[str]:
    return [node.op_type for graph in ir.graphs_of(model) for node in graph if node.op_type in SEQUENCES]


def loop(
    reader: str,
    *,
    trips: str = "n",
    element: str = "r = Exp(v)",
    body: str = "d = Identity(c) w = Neg(v)",
    result: str = "float[A,B,C] z",
    insert: str = "SequenceInsert(l, r)",
    dims: str = "2,3",
    dtype: str = "float",
) -> str:
    kind = {"float": 1, "int64": 7}[dtype]
    return f"""g ({dtype}[{dims}] x, int64 i) => ({dtype}[{dims}] y, {result})
    <int64 n = {{3}}, int64 none = {{0}}, int64 once = {{1}}, bool go = {{1}}, int64 first = {{0}}> {{
        e = SequenceEmpty<dtype = {kind}>()
        y, s = Loop ({trips}, go, x, e) <
            body = f (int64 t, bool c, {dtype}[P,Q] v, seq({dtype}[P,Q]) l)
            => (bool d, {dtype}[P,Q] w, seq({dtype}[P,Q]) m)
            {{ {body} {element} m = {insert} }}
        >
        {reader}
    }}"""


@pytest.mark.parametrize(
    ("axis", "trips"), [(0, "n"), (1, "once"), (1, "n"), (2, "n"), (-1, "n"), (-3, "once")]
)
def test_stacks(axis: int, trips: str) -> None:
    dims = "N,3" if axis == 1 else "2,3"
    text = loop(f"z = ConcatFromSequence<axis = {axis}, new_axis = 1>(s)", trips=trips, dims=dims)
    model, _ = gathered(text)
    assert ops(model) == (["Loop"] if axis in (0, -3) else ["Loop", "Transpose"]) and not left(model)


@pytest.mark.parametrize(
    ("dims", "axis", "expected"),
    [
        ("N,1", 1, ["Transpose", "Squeeze"]),
        ("1,N", 0, ["Squeeze"]),
        ("1,N", -2, ["Squeeze"]),
        ("2,3", 0, ["Reshape"]),
        ("2,3", 1, ["Transpose", "Reshape"]),
    ],
)
def test_joins(dims: str, axis: int, expected: list[str]) -> None:
    text = loop(f"z = ConcatFromSequence<axis = {axis}>(s)", dims=dims, result="float[A,B] z")
    model, _ = gathered(text, opset=13)
    assert ops(model) == ["Loop", *expected]


@pytest.mark.parametrize(("dims", "axis"), [("N,3", 0), ("N,3", 1), ("2,N", 0), ("0,3", 0), ("2,0", 0)])
def test_joins_of_unknown_sizes_stay(dims: str, axis: int) -> None:
    text = loop(f"z = ConcatFromSequence<axis = {axis}>(s)", dims=dims, result="float[A,B] z")
    model, told = gathered(text)
    assert "unknown sizes" in told and "ConcatFromSequence" in left(model)


@pytest.mark.parametrize(("trips", "dtype"), [("n", "float"), ("once", "int64"), ("none", "float")])
def test_lengths(trips: str, dtype: str) -> None:
    text = loop("z = SequenceLength(s)", trips=trips, result="int64 z", dtype=dtype, element="r = Abs(v)")
    model, _ = gathered(text)
    assert ops(model) == ["Loop", "Shape", "Gather"]


def test_elements() -> None:
    text = loop("k = Clip(i, first, first) z = SequenceAt(s, k) last = Neg(once) u = SequenceAt(s, last)",
                result="float[A,B] z, float[D,E] u")  # fmt: skip
    assert [kind for kind in ops(gathered(text)[0]) if kind == "Gather"] == ["Gather"] * 2


def test_a_loop_that_stops_early() -> None:
    text = loop(
        "z = ConcatFromSequence<axis = 1, new_axis = 1>(s) k = SequenceLength(s)",
        result="float[A,B,C] z, int64 k",
        body="q = Less(t, once) d = And(c, q) w = Neg(v)",
    )
    model, _ = gathered(text)
    assert not left(model)


@pytest.mark.parametrize("element", ["r = Identity(v)", "r = Identity(x)", "u = Identity(w) r = Identity(u)"])
def test_appended_values_are_carried_or_from_outside(element: str) -> None:
    text = loop("z = ConcatFromSequence<axis = 0, new_axis = 1>(s)", element=element)
    assert not left(gathered(text)[0])
    # the body's own values, without an Identity around them
    assert not left(gathered(text, "peephole,gather-loop-lists,dce")[0])


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"insert": "SequenceInsert(l, r, first)"}, "append exactly one"),
        (
            {"element": "r = Exp(v) k = SequenceLength(l)", "body": "d = Less(k, n) w = Neg(v)"},
            "append exactly one",
        ),
        (
            {"element": "r = Exp(v) k = SequenceInsert(l, r)", "insert": "SequenceInsert(k, r)"},
            "append exactly one",
        ),
        (
            {"element": "r = Concat<axis = 0>(v, x)", "body": "d = Identity(c) w = Concat<axis = 0>(v, x)"},
            "may vary",
        ),
        ({"element": "nz = NonZero(v) r = Cast<to = 1>(nz)"}, "may vary"),
    ],
)
def test_sequences_that_are_not_replaced(changes: dict[str, str], why: str) -> None:
    body = changes.pop("body", "d = Identity(c) w = Neg(v)")
    element = changes.pop("element", "r = Exp(v)")
    text = loop("z = SequenceAt(s, first)", result="float[A,B] z", body=element, element=body, **changes)
    model, told = gathered(text)
    assert why in told and "SequenceInsert" in left(model)


def test_returned_sequences_and_nonempty_initial_sequences() -> None:
    model, told = gathered(loop("z = Identity(s)", result="seq(float[A,B]) z"))
    assert "needs the sequence itself" in told and left(model)
    text = loop("z = SequenceAt(s, first)", result="float[A,B] z").replace(
        "SequenceEmpty<dtype = 1>()", "SequenceConstruct(x)"
    )
    assert left(gathered(text)[0]) == ["SequenceAt", "SequenceInsert"]


def test_lists_in_branches_loops_and_functions() -> None:
    model, _ = gathered(
        """<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
        g (float[N,2] x, bool p) => (float[A,B,C] y) <int64 n = {2}, bool go = {1}, int64[3] shape = {0, -1, 1}> {
            e = SequenceEmpty()
            f = own.Stack(x)
            s, t = Loop (n, go, e, e) <
                body = b (int64 i, bool c, seq(float[N,2]) l, seq(float[N]) l1)
                => (bool d, seq(float[N,2]) m, seq(float[N]) m1) {
                    d = Identity(c)
                    e2 = SequenceEmpty()
                    h = Cast<to = 1>(i)
                    s2 = Loop (n, go, e2) <
                        body = b2 (int64 i2, bool c2, seq(float[N,2]) l2) => (bool d2, seq(float[N,2]) m2)
                        { d2 = Identity(c2) r2 = Add(x, h) m2 = SequenceInsert(l2, r2) }
                    >
                    k = ConcatFromSequence<axis = 1, new_axis = 1>(s2)
                    r = ReduceSum<keepdims = 0>(k)
                    q = Mul(r, x)
                    m = SequenceInsert(l, q)
                    q1 = ReduceMax<axes = [1], keepdims = 0>(x)
                    m1 = SequenceInsert(l1, q1)
                }
            >
            y = If (p) <
                then_branch = a () => (float[A,B,C] u) { u = ConcatFromSequence<axis = 2, new_axis = 1>(s) },
                else_branch = o () => (float[A,B,C] w) {
                    j = ConcatFromSequence<axis = -1, new_axis = 1>(t) j1 = Unsqueeze(j, n) w = Add(j1, f) }
            >
        }
        <domain: "own", opset_import: ["" : 17]>
        Stack (x) => (y) {
            n = Constant<value = int64 {3}>()
            e = SequenceEmpty()
            s = Loop (n, , e) <
                body = b (int64 i, bool c, seq(float[N,2]) l) => (bool d, seq(float[N,2]) m)
                { d = Identity(c) r = Exp(x) m = SequenceInsert(l, r) }
            >
            z = ConcatFromSequence<axis = 0, new_axis = 1>(s)
            y = ReduceSum<keepdims = 0>(z)
        }"""
    )
    # in a function, the rank of what it is given may not be known
    assert not [node for graph in ir.with_bodies(model.graph) for node in graph if node.op_type in SEQUENCES]
