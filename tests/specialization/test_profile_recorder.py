"""Recording profiles."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.helper as oh
import pytest

import graphopt
from graphopt import ir
from graphopt.context import context_for
from graphopt.errors import RuntimeFailure, UsageError
from graphopt.inputs.feeds import InputOptions
from graphopt.profile import Profile, ValueProfile
from graphopt.specialization.instrumented_model import lower_profiling_nodes
from graphopt.specialization.profile_recorder import Recorder
from graphopt.transforms.profile.instrument import Instrument, Watch

from ..model_testing import parse

#: The nonzero elements of x, and a given number of ones; u has known sizes.
FOUND = """
found (float[N, 4] x, int64 n, bool[2] mask) => (float[N, 4] y, float[M] z, float[K] ones) {
  u = Transpose <perm = [1, 0]> (x)
  y = Transpose <perm = [1, 0]> (u)
  places = NonZero(x)
  pairs = Transpose <perm = [1, 0]> (places)
  z = GatherND(x, pairs)
  axis = Constant <value_ints = [-1]> ()
  length = Reshape(n, axis)
  ones = ConstantOfShape(length)
  unused = Not(mask)
}
"""


def _feeds(rows: int, n: int, mask: tuple[bool, bool] = (True, False)) -> dict[str, np.ndarray]:
    x = np.zeros((rows, 4), np.float32)
    x[0, :2] = 1
    return {"x": x, "n": np.array(n), "mask": np.array(mask)}


def test_constant_sizes_and_contents_are_recorded() -> None:
    profile = graphopt.record_profile(parse(FOUND), [_feeds(1, 3), _feeds(2, 3), _feeds(2, 3)])
    assert [(pattern.count, pattern.inputs["x"].shape) for pattern in profile.patterns] == [
        (1, (1, 4)),
        (2, (2, 4)),
    ]
    assert profile.values["x"] == ValueProfile("tensor(float)", ("d0", 4))
    assert profile.values["n"] == ValueProfile("tensor(int64)", (), (3,))
    assert profile.values["mask"] == ValueProfile("tensor(bool)", (2,), (1, 0))


def test_varying_contents_are_not_recorded() -> None:
    profile = graphopt.record_profile(parse(FOUND), [_feeds(1, 3), _feeds(1, 5, (False, False))])
    assert profile.values["n"] == ValueProfile("tensor(int64)", ())
    assert profile.values["mask"].ints is None
    assert profile.values["ones"].shape == ("d0",)


def test_intermediate_values_with_data_dependent_shapes_are_recorded() -> None:
    profile = graphopt.record_profile(parse(FOUND), [_feeds(2, 3)])
    assert profile.values.keys() - {"x", "n", "mask"} == {
        "places",
        "ones",
    }  # the size of z follows from that of places
    assert profile.values["places"] == ValueProfile("tensor(int64)", (2, 2))


def test_wrong_declaration_of_an_intermediate_value_is_ignored() -> None:
    model = parse(FOUND)
    (places,) = (value for value in ir.values_of(model.graph) if value.name == "places")
    places.shape, places.type = ir.Shape([7]), ir.TensorType(ir.DataType.FLOAT)
    profile = graphopt.record_profile(parse(FOUND), [_feeds(2, 3)])
    assert profile.values["places"] == ValueProfile("tensor(int64)", (2, 2))


def test_recording_does_not_modify_the_model() -> None:
    model = parse(FOUND)
    before = ir.to_bytes(model)
    graphopt.record_profile(model, [_feeds(2, 3)])
    assert ir.to_bytes(model) == before


def test_large_float_and_generated_contents_are_not_recorded() -> None:
    model = parse("g (int64[N] i, float[1] f) => (int64[N] j, float[1] g) { j = Neg(i)  g = Neg(f) }")
    feeds = {"i": np.arange(17), "f": np.ones(1, np.float32)}
    profile = graphopt.record_profile(model, [feeds])
    assert profile.values["i"] == ValueProfile("tensor(int64)", (17,)) and profile.values["f"].ints is None
    profile = graphopt.record_profile(model, [InputOptions(shapes={"i": (3,)})])
    assert profile.values["i"] == ValueProfile("tensor(int64)", (3,))
    assert graphopt.record_profile(model, [feeds | {"i": np.arange(16)}]).values["i"].ints == (*range(16),)


def test_default_that_is_not_overridden_is_missing_in_the_pattern() -> None:
    model = parse("g (float[N] x, int64[1] k = {2}) => (float[K] y, int64[K] at) { y, at = TopK(x, k) }")
    x = np.arange(4, dtype=np.float32)
    profile = graphopt.record_profile(model, [{"x": x}, {"x": x, "k": np.array([3])}])
    assert [list(pattern.inputs) for pattern in profile.patterns] == [["x"], ["x", "k"]]
    assert profile.values["k"] == ValueProfile("tensor(int64)", (1,), (3,), always=False)
    assert profile.values["y"].shape == ("d0",) and "at" not in profile.values


def test_sequences_strings_and_scalars_are_recorded() -> None:
    text = "g (seq(float[N]) s, string[N] t, int32 i) => (float[M] y, string[N] u, int32 j) {" + (
        " y = ConcatFromSequence <axis = 0> (s)  u = Identity(t)  j = Identity(i) }"
    )
    feeds: dict[str, Any] = {
        "s": [np.ones(2, np.float32), np.ones(3, np.float32)],
        "t": np.array(["a", "b"], dtype=object),
        "i": np.array(7, np.int32),
    }
    profile = graphopt.record_profile(parse(text), [feeds])
    assert profile.values["s"] == ValueProfile("seq(tensor(float))")
    assert profile.values["t"] == ValueProfile("tensor(string)", (2,))
    assert profile.values["i"] == ValueProfile("tensor(int32)", (), (7,))
    assert profile.values["y"] == ValueProfile("tensor(float)", (5,))


def test_crash_prone_model_is_recorded_in_a_child() -> None:
    body = oh.make_graph(
        [
            oh.make_node("Identity", ["c"], ["d"]),
            oh.make_node("Neg", ["a"], ["b"]),
            oh.make_node("Neg", ["b"], ["o"]),
        ],
        "body",
        [
            oh.make_tensor_value_info("k", onnx.TensorProto.INT64, []),
            oh.make_tensor_value_info("c", onnx.TensorProto.BOOL, []),
            oh.make_tensor_value_info("a", onnx.TensorProto.FLOAT, [2]),
        ],
        [oh.make_tensor_value_info(n, t, s) for n, t, s in (("d", 9, []), ("b", 1, [2]), ("o", 1, [2]))],
    )
    graph = oh.make_graph(
        [
            oh.make_node("Loop", ["n", "", "x"], ["last", "all"], body=body),
            oh.make_node("Neg", ["all"], ["y"]),
        ],
        "g",
        [
            oh.make_tensor_value_info("n", onnx.TensorProto.INT64, []),
            oh.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2]),
        ],
        [oh.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
    )
    model = ir.from_proto(oh.make_model(graph, opset_imports=[oh.make_opsetid("", 17)], ir_version=8))
    x = np.ones(2, np.float32)
    runs = [{"n": np.array(trips), "x": x} for trips in (3, 4)]
    assert graphopt.record_profile(model, runs).values["all"] == ValueProfile("tensor(float)", ("d0", 2))


def test_number_of_recorded_intermediate_values_is_limited() -> None:
    with Recorder(parse(FOUND), limit=1) as recorder:
        recorder.run(_feeds(1, 3))
    assert (recorder.profile.watched, recorder.profile.left_out) == (1, 1)
    assert "places" in recorder.profile.values and "ones" not in recorder.profile.values


def test_errors_of_a_run_are_reported() -> None:
    model = parse(FOUND)
    with pytest.raises(UsageError, match="needs a value for input 'n'"):
        graphopt.record_profile(model, [{"x": np.zeros((1, 4), np.float32)}])
    with pytest.raises(UsageError, match="no input is called 'grad'"):
        graphopt.record_profile(model, [], requires_grad=["grad"])
    with pytest.raises(RuntimeFailure, match="onnxruntime failed"):
        graphopt.record_profile(model, [_feeds(1, 3) | {"x": np.zeros((1, 5), np.float32)}])


def test_requires_grad_is_kept_in_a_profile_without_runs() -> None:
    profile = graphopt.record_profile(parse(FOUND), [], requires_grad=["x"])
    assert profile.runs == 0 and profile.requires_grad == {"x": True}


def test_profile_is_valid_for_all_forms_of_a_model(tmp_path: Any) -> None:
    model = parse(FOUND)
    profile = graphopt.record_profile(model, [_feeds(1, 3)])
    for suffix in (".onnx", ".json", ".onnxtxt", ".onnxjson"):
        graphopt.save(model, tmp_path / f"m{suffix}")
        profile = profile.merge(graphopt.record_profile(tmp_path / f"m{suffix}", [_feeds(2, 3)]))
    assert profile.runs == 5
    other = parse(
        FOUND.replace("x)", "input)").replace("(x", "(input").replace("float[N, 4] x", "float[N, 4] input")
    )
    assert graphopt.record_profile(other, []).model != profile.model
    profile.write(tmp_path / "p.json")
    assert Profile.is_at(tmp_path / "p.json") and not Profile.is_at(tmp_path / "m.json")


#: In each trip, v loses its last element; the branch runs if go holds.
BODIES = """
g (float[N] x, int64 n, bool go) => (float[K] y, float[M] z, float[J, 1] rows) {
  one = Constant <value_ints = [1]> ()
  zero = Constant <value_ints = [0]> ()
  minus = Constant <value_ints = [-1]> ()
  y, rows = Loop (n, , x) <body = b (int64 i, bool c, float[A] v) => (bool d, float[B] w, float[1] r) {
    d = Identity(c)
    w = Slice(v, zero, minus, zero)
    r = Slice(v, zero, one, zero)
  }>
  z = If (go) <
    then_branch = t () => (float[P] p) { p = Concat <axis = 0> (x, x, x) },
    else_branch = e () => (float[Q] q) { q = Neg(x) }
  >
}
"""


def _bodies(n: int, go: bool, size: int = 6) -> dict[str, np.ndarray]:
    return {"x": np.ones(size, np.float32), "n": np.array(n), "go": np.array(go)}


def test_values_in_bodies_have_the_shapes_of_the_last_trip() -> None:
    profile = graphopt.record_profile(parse(BODIES), [_bodies(3, True)], watch="all")
    assert profile.values["w"].shape == (3,) and profile.values["v"].shape == (4,)
    assert profile.values["p"].shape == (18,) and "q" not in profile.values
    profile = profile.merge(graphopt.record_profile(parse(BODIES), [_bodies(0, False)], watch="all"))
    assert not profile.values["w"].always and not profile.values["q"].always
    assert profile.values["rows"].shape is not None and profile.values["rows"].shape[1] == 1
    assert Profile.from_dict(profile.to_dict()) == profile


def test_values_in_scans_and_nested_bodies_are_recorded() -> None:
    text = """g (float[N, 4] x, bool go) => (float[4] s, float[N, 4] y) <float[4] init = {0, 0, 0, 0}> {
      s, y = Scan <num_scan_inputs = 1, scan_output_axes = [0], body = b (float[4] a, float[4] r) => (float[4] t, float[4] u) {
        t = Add(a, r)
        u = If (go) <
          then_branch = p () => (float[4] v) { found = NonZero(t) size = Shape(found) k = Cast <to = 1> (size) v = Expand(one, four) },
          else_branch = q () => (float[4] w) { w = Neg(t) }
        >
      }> (init, x)
    }"""
    text = text.replace("{0, 0, 0, 0}>", "{0, 0, 0, 0}, float[1] one = {1}, int64[1] four = {4}>")
    feeds = {"x": np.array([[0, 0, 0, 1], [0, 2, 0, 0]], np.float32), "go": np.array(True)}
    profile = graphopt.record_profile(parse(text, ir_version=10), [feeds])
    assert profile.values["found"] == ValueProfile("tensor(int64)", (1, 2))
    profile = graphopt.record_profile(parse(text, ir_version=10), [feeds | {"go": np.array(False)}])
    assert "found" not in profile.values and profile.watched == 1


def test_many_values_are_observed_in_chunks() -> None:
    model = parse(BODIES)
    extended = model.clone()
    with context_for(extended) as cx:
        Instrument(Watch.ALL).run(extended, cx)
    chunks = lower_profiling_nodes(extended, 4)
    whole = lower_profiling_nodes(extended)
    assert len(whole) == 1 and len(chunks) > 2
    found: dict[str, ValueProfile] = {}
    for part in chunks:
        assert len(part.probes) <= 4
        found |= part.observed(graphopt.run(part.model, _bodies(2, True))).values
    outputs = graphopt.run(whole[0].model, _bodies(2, True))
    assert found == whole[0].observed(outputs).values
    assert list(outputs)[:3] == ["y", "z", "rows"]


def test_watch_inputs_records_no_intermediate_values() -> None:
    profile = graphopt.record_profile(parse(FOUND), [_feeds(2, 3)], watch="inputs")
    assert profile.values.keys() == {"x", "n", "mask"} and (profile.watched, profile.left_out) == (0, 0)
    with pytest.raises(UsageError, match="no kind of watched values is called 'all values'"):
        graphopt.record_profile(parse(FOUND), [], watch="all values")


def test_an_instrumented_model_can_be_profiled() -> None:
    model = graphopt.optimize(parse(FOUND), pipeline="instrument{watch=all}", verify=False).model
    assert graphopt.record_profile(model, [_feeds(2, 3)]).values["places"].shape == (2, 2)
