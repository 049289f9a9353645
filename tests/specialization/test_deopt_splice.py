"""A model with bailouts computes what the original does, whether guards hold or miss, and wherever they miss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graphopt import ir
from graphopt.errors import UnsupportedModel
from graphopt.profile import Seen
from graphopt.profile.annotations import note
from graphopt.specialization.deopt import Inserted, insert_bailouts
from tests.specialization.deopt_runs import RUNS, Feeds, nested_models, run, same, session
from tests.support import parse, run_pipeline

X = np.array([1, -2, 3], np.float32)
FLOATS = "tensor(float)"


def guarded(model: ir.Model, seen: dict[str, Seen]) -> ir.Model:
    """A copy of ``model`` with guards."""
    found = ir.clone(model)
    note(found, seen)
    run_pipeline(found, "insert-guards{pin=false}")
    return found


def inserted(model: ir.Model, seen: dict[str, Seen], passes: str = "") -> tuple[ir.Model, Inserted]:
    """``model`` with bailouts, after ``passes`` that rely on guards."""
    found = insert_bailouts(guarded(model, seen))
    run_pipeline(found.model, ",".join(filter(None, [passes, "remove-profile-nodes"])))
    return found.model, found


def agrees(model: ir.Model, other: ir.Model, runs: Sequence[Feeds]) -> None:
    before, after = session(model), session(other)
    for feeds in runs:
        expected, found = run(before, feeds), run(after, feeds)
        assert expected.keys() == found.keys()
        for name, value in expected.items():
            assert same(value, found[name]), (name, feeds, value, found[name])


FOUND = """g (float[N] x) => (float[A, B] y, float[N] early) <int64[1] first = {0}, float half = {0.5}> {
  early = Add(x, half)
  large = Greater(x, half)
  at = NonZero(large)
  shape = Shape(at)
  count = Gather(shape, first)
  flags = ConstantOfShape(shape)
  numbers = Cast<to = 1>(at)
  sum = Add(numbers, flags)
  y = Mul(sum, half)
}"""


def test_what_depends_on_data_is_checked_where_it_is_known() -> None:
    model = parse(FOUND)
    result, found = inserted(
        model, {"at": Seen("tensor(int64)", (1, 2))}, "fixpoint(constant-propagation,dce)"
    )
    assert [place.value.name for place in found.places] == ["at"]
    agrees(model, result, [{"x": X}, {"x": X[:1]}, {"x": -X}, {"x": X[:0]}])
    choice = next(node for node in result.graph if node.op_type == "If")
    general, special = (choice.attributes[name].as_graph() for name in ("then_branch", "else_branch"))
    assert "ConstantOfShape" in [node.op_type for node in general]
    assert "ConstantOfShape" not in [node.op_type for node in special]  # which knows the shape


@pytest.mark.parametrize(
    ("x", "misses"), [(X, False), (X[:1], True), (-X, True), (np.array([2, 2], np.float32), False)]
)
def test_a_run_leaves_where_the_guard_misses(x: np.ndarray, misses: bool) -> None:
    result, _ = inserted(parse(FOUND), {"at": Seen("tensor(int64)", (1, 2))})
    [choice] = [node for node in result.graph if node.op_type == "If"]
    assert choice.inputs[0] is not None
    choice.inputs[0].type = ir.TensorType(ir.DataType.BOOL)
    ir.Editor(result).add_output(result.graph, choice.inputs[0])
    outputs = run(session(result), {"x": x})
    assert bool(outputs[choice.inputs[0].name or ""]) == misses


def test_dims_that_guards_take_for_equal() -> None:
    model = parse("""g (float[N] x, float[M] u) => (float[A, B] y) <float half = {0.5}> {
      a = Greater(x, half)  one = NonZero(a)
      b = Greater(u, half)  two = NonZero(b)
      c = Concat<axis = 0>(one, one)
      p = Cast<to = 1>(one)  q = Cast<to = 1>(two)
      s = Transpose(p)
      y = MatMul(s, q)
    }""")
    seen = {"one": Seen("tensor(int64)", (1, "n")), "two": Seen("tensor(int64)", (1, "n"))}
    result, found = inserted(model, seen)
    assert len(found.places) == 2
    runs = [{"x": x, "u": u} for x in (X, -X, X[:0]) for u in (X, -X)]
    agrees(model, result, runs)


GROWING = """g (float[N] x, int64 m, bool c) => (float[A] y, float[T] rows, float[T, N] wide) <int64 one = {1}, float half = {0.5}> {
  w = Relu(x)
  y, rows, wide = Loop(m, c, w) <body = b (int64 i, bool k, float[P] v) => (bool on, float[Q] end, float row, float[N] broad) {
    large = Greater(v, half)
    at = NonZero(large)
    place = Transpose(at)
    picked = GatherND(v, place)
    end = Concat<axis = 0>(picked, w)
    size = Size(end)
    row = Cast<to = 1>(size)
    broad = Add(w, row)
    on = Identity(k)
  }>
}"""
TRIPS: list[Feeds] = [
    {"x": X, "m": np.array(m), "c": np.array(c)} for m, c in ((0, True), (1, True), (4, True), (4, False))
]


@pytest.mark.parametrize("size", [0, 2, 4, 6, 99])
@pytest.mark.parametrize("names", [("at",), ("picked",), ("at", "picked", "end"), ("end", "y", "w")])
def test_a_loop_is_left_in_the_trip_that_misses(names: Sequence[str], size: int) -> None:
    model = parse(GROWING)
    seen = {name: Seen(FLOATS, (size,)) for name in names} | {"at": Seen("tensor(int64)", (1, size))}
    seen = {name: seen[name] for name in names}
    result, found = inserted(model, seen)
    assert found.places and not found.refused
    agrees(model, result, TRIPS)


def test_contents_are_checked() -> None:
    model = parse(GROWING.replace("size = Size(end)", "size0 = Size(end) size = Add(size0, one)"))
    seen = {"size0": Seen("tensor(int64)", (), (5,))}
    result, found = inserted(model, seen, "fixpoint(constant-propagation,dce)")
    assert [place.value.name for place in found.places] == ["size0"]
    agrees(model, result, TRIPS)


def test_symbols_that_only_loops_see_are_not_relied_on() -> None:
    model = parse(GROWING)
    seen = {"w": Seen(FLOATS, ("a",)), "picked": Seen(FLOATS, ("a",)), "end": Seen(FLOATS, ("b",))}
    seen["at"] = Seen("tensor(int64)", (1, "b"))
    result, found = inserted(model, seen)
    agrees(model, result, TRIPS)
    assert [place.value.name for place in found.places] == ["w", "picked"]
    assert [reason for _, reason in found.refused] == ["it asserts nothing that can be checked"] * 2


def test_no_more_than_wanted() -> None:
    model = guarded(parse(GROWING), {"w": Seen(FLOATS, (3,)), "end": Seen(FLOATS, (5,))})
    found = insert_bailouts(model, most=1)
    assert [place.value.name for place in found.places] == ["w"]
    assert [reason for _, reason in found.refused] == ["only 1 are wanted"]


def test_guards_that_are_relied_on_are_refused() -> None:
    model = parse(GROWING)
    note(model, {"w": Seen(FLOATS, (3,)), "size": Seen("tensor(int64)", (), (5,))})
    run_pipeline(model, "insert-guards")  # 5 is read instead of the size
    with pytest.raises(UnsupportedModel, match="relies on it already"):
        insert_bailouts(model)


@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(st.data())
def test_in_nested_loops_and_branches(data: Any) -> None:
    model = data.draw(nested_models())
    values = [
        value.name or ""
        for graph in ir.graphs_of(model)
        for value in ir.values_of(graph)
        if ir.constant_of(value) is None and (value.name or "").startswith(("v", "s"))
    ]
    names = data.draw(st.lists(st.sampled_from(values), min_size=1, max_size=4, unique=True))
    seen = {name: Seen(FLOATS, (data.draw(st.sampled_from([3, 3, 2])),)) for name in names}
    result, _ = inserted(model, seen)
    agrees(model, result, RUNS)
