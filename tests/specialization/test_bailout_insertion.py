"""Splicing bailouts: the model is equivalent to the original, whether or not guards hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graphopt import ir
from graphopt.errors import UnsupportedModel
from graphopt.profile import ValueProfile
from graphopt.profile.annotations import annotate
from graphopt.specialization.deopt import ModelWithBailouts, insert_bailouts
from tests.model_testing import parse, run_pipeline
from tests.specialization.deopt_runs import RUNS, Feeds, nested_models, run, same, session

X = np.array([1, -2, 3], np.float32)
FLOATS = "tensor(float)"


def guarded(model: ir.Model, seen: dict[str, ValueProfile]) -> ir.Model:
    """A copy of ``model`` with guards."""
    found = ir.clone(model)
    annotate(found, seen)
    run_pipeline(found, "insert-guards{pin=false}")
    return found


def spliced(
    model: ir.Model, seen: dict[str, ValueProfile], passes: str = ""
) -> tuple[ir.Model, ModelWithBailouts]:
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


def test_data_dependent_shape_is_checked_behind_its_value() -> None:
    model = parse(FOUND)
    result, found = spliced(
        model, {"at": ValueProfile("tensor(int64)", (1, 2))}, "fixpoint(constant-propagation,dce)"
    )
    assert [point.value.name for point in found.exit_points] == ["at"]
    agrees(model, result, [{"x": X}, {"x": X[:1]}, {"x": -X}, {"x": X[:0]}])
    choice = next(node for node in result.graph if node.op_type == "If")
    general, special = (choice.attributes[name].as_graph() for name in ("then_branch", "else_branch"))
    assert "ConstantOfShape" in [node.op_type for node in general]
    assert "ConstantOfShape" not in [node.op_type for node in special]  # the shape is known there


@pytest.mark.parametrize(
    ("x", "fails"), [(X, False), (X[:1], True), (-X, True), (np.array([2, 2], np.float32), False)]
)
def test_run_exits_where_the_guard_fails(x: np.ndarray, fails: bool) -> None:
    result, _ = spliced(parse(FOUND), {"at": ValueProfile("tensor(int64)", (1, 2))})
    [choice] = [node for node in result.graph if node.op_type == "If"]
    assert choice.inputs[0] is not None
    choice.inputs[0].type = ir.TensorType(ir.DataType.BOOL)
    ir.Editor(result).add_output(result.graph, choice.inputs[0])
    outputs = run(session(result), {"x": x})
    assert bool(outputs[choice.inputs[0].name or ""]) == fails


def test_equal_dims_are_checked() -> None:
    model = parse("""g (float[N] x, float[M] u) => (float[A, B] y) <float half = {0.5}> {
      a = Greater(x, half)  one = NonZero(a)
      b = Greater(u, half)  two = NonZero(b)
      c = Concat<axis = 0>(one, one)
      p = Cast<to = 1>(one)  q = Cast<to = 1>(two)
      s = Transpose(p)
      y = MatMul(s, q)
    }""")
    seen = {"one": ValueProfile("tensor(int64)", (1, "n")), "two": ValueProfile("tensor(int64)", (1, "n"))}
    result, found = spliced(model, seen)
    assert len(found.exit_points) == 2
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
def test_loop_exits_in_the_iteration_whose_guard_fails(names: Sequence[str], size: int) -> None:
    model = parse(GROWING)
    seen = {name: ValueProfile(FLOATS, (size,)) for name in names} | {
        "at": ValueProfile("tensor(int64)", (1, size))
    }
    seen = {name: seen[name] for name in names}
    result, found = spliced(model, seen)
    assert found.exit_points and not found.refused
    agrees(model, result, TRIPS)


def test_contents_are_checked() -> None:
    model = parse(GROWING.replace("size = Size(end)", "size0 = Size(end) size = Add(size0, one)"))
    seen = {"size0": ValueProfile("tensor(int64)", (), (5,))}
    result, found = spliced(model, seen, "fixpoint(constant-propagation,dce)")
    assert [point.value.name for point in found.exit_points] == ["size0"]
    agrees(model, result, TRIPS)


def test_symbols_that_occur_in_loops_only_are_dropped() -> None:
    model = parse(GROWING)
    seen = {
        "w": ValueProfile(FLOATS, ("a",)),
        "picked": ValueProfile(FLOATS, ("a",)),
        "end": ValueProfile(FLOATS, ("b",)),
    }
    seen["at"] = ValueProfile("tensor(int64)", (1, "b"))
    result, found = spliced(model, seen)
    agrees(model, result, TRIPS)
    assert [point.value.name for point in found.exit_points] == ["w", "picked"]
    assert [reason for _, reason in found.refused] == ["it asserts nothing that can be checked"] * 2


def test_number_of_exit_points_is_limited() -> None:
    model = guarded(parse(GROWING), {"w": ValueProfile(FLOATS, (3,)), "end": ValueProfile(FLOATS, (5,))})
    found = insert_bailouts(model, most=1)
    assert [point.value.name for point in found.exit_points] == ["w"]
    assert [reason for _, reason in found.refused] == ["the limit of 1 is reached"]


def test_unused_guards_are_refused() -> None:
    model = parse(GROWING)
    annotate(model, {"w": ValueProfile(FLOATS, (3,)), "size": ValueProfile("tensor(int64)", (), (5,))})
    run_pipeline(model, "insert-guards")  # the size becomes the constant 5
    with pytest.raises(UnsupportedModel, match="rewrites already rely on it"):
        insert_bailouts(model)


@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(st.data())
def test_splice_in_nested_loops_and_branches(data: Any) -> None:
    model = data.draw(nested_models())
    values = [
        value.name or ""
        for graph in ir.graphs_of(model)
        for value in ir.values_of(graph)
        if ir.constant_of(value) is None and (value.name or "").startswith(("v", "s"))
    ]
    names = data.draw(st.lists(st.sampled_from(values), min_size=1, max_size=4, unique=True))
    seen = {name: ValueProfile(FLOATS, (data.draw(st.sampled_from([3, 3, 2])),)) for name in names}
    result, _ = spliced(model, seen)
    agrees(model, result, RUNS)
