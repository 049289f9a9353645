"""Splitting a model at an exit point: prefix and continuation are equivalent to the model."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings

from graphopt import api, ir
from graphopt.errors import UnsupportedModel, UsageError
from graphopt.specialization.deopt import bailout_at
from graphopt.specialization.deopt.exit_points import exit_points_of
from tests.model_testing import parse
from tests.specialization.deopt_runs import RUNS, Resumed, all_points, check, nested_models

X = np.array([1, -2, 3], np.float32)


def _behind(model: ir.Model, name: str) -> Resumed:
    return Resumed(model, next(point for point in all_points(model) if point.value.name == name))


CHAIN = """g (float[N] x, float[N] u) => (float[N] y, float[N] early) <float half = {0.5}> {
  a = Relu(x)
  early = Add(a, half)
  b = Exp(a)
  c = Mul(b, early)
  y = Sub(c, u)
}"""


def test_split_in_the_main_graph() -> None:
    model = parse(CHAIN)
    assert check(model, [{"x": X, "u": X}]) == 7
    bailout = _behind(model, "b").bailout
    assert [value.name for value in bailout.rest.graph.inputs] == ["b", "early", "u"]
    assert [value.name for value in bailout.prefix.graph.outputs] == ["reached", "b", "early"]
    assert [value.name for value in bailout.rest.graph.outputs] == ["y", "early"]
    assert bailout.occurrence is None


def test_split_in_branches() -> None:
    model = parse("""g (float[N] x, bool c, bool d) => (float[A] y, float[B] z) <float half = {0.5}> {
      y, z = If(c) <then_branch = t () => (float[N] p, float[N] q) {
          a = Relu(x) p = Add(a, half)
          q = If(d) <then_branch = tt () => (float[N] f) { g1 = Mul(a, a) f = Add(g1, p) },
                     else_branch = te () => (float[N] f) { g1 = Exp(a) f = Add(g1, p) }> },
        else_branch = e () => (float[N] p, float[N] q) { a = Neg(x) p = Sub(a, half) q = Identity(x) }>
    }""")
    runs = [{"x": X, "c": np.array(c), "d": np.array(d)} for c in (True, False) for d in (True, False)]
    assert check(model, runs) == 36
    assert _behind(model, "g1").exit(runs[2]) is None  # the other branch runs


LOOP = """g (float[N] x, int64 m, bool c) => (float[A] y, float[B, N] rows, int64[D] counts)
  <int64 one = {1}, int64 three = {3}, float half = {0.5}> {
  y, rows, counts = Loop(COUNT, CONDITION, x) <body = b (int64 i, bool k, float[N] v)
      => (bool on, float[N] end, float[N] row, int64 count) {
    scaled = Mul(v, half)
    on = Less(i, three)
    end = Add(scaled, x)
    row = Sub(end, v)
    count = Add(i, one)
  }>
}"""


@pytest.mark.parametrize("opset", [11, 13, 17, 21])
@pytest.mark.parametrize(("count", "condition"), [("m", "c"), ("m", ""), ("", "c"), ("", "")])
def test_split_in_a_loop(count: str, condition: str, opset: int) -> None:
    model = parse(LOOP.replace("COUNT", count).replace("CONDITION", condition), opset=opset)
    runs = [
        {"x": X, "m": np.array(m), "c": np.array(c)} for m, c in ((0, True), (1, True), (9, True), (9, False))
    ]
    assert check(model, runs) > 20
    resumed = _behind(model, "scaled")
    assert resumed.reached(runs[2]) == 4  # the body ends the loop before its ninth iteration
    names = [value.name for value in resumed.bailout.rest.graph.inputs]
    assert names[0] == "scaled" and {"i", "rows_so_far", "counts_so_far"} <= {*names}
    assert ("m" in names) == bool(count)


def test_rows_of_earlier_iterations_are_transferred() -> None:
    model = parse(LOOP.replace("COUNT", "m").replace("CONDITION", "c"))
    resumed = _behind(model, "end")
    handed = resumed.exit({"x": X, "m": np.array(9), "c": np.array(True)}, 2)
    assert handed is not None
    assert handed["i"] == 2 and handed["counts_so_far"][:2].tolist() == [1, 2]


def test_split_with_sequences_and_growing_tensors() -> None:
    model = parse("""g (float[N] x, int64 m) => (float[A] y, seq(float) parts) <bool yes = {1}> {
      e = SequenceEmpty<dtype = 1>()
      y, parts = Loop(m, yes, x, e) <body = b (int64 i, bool k, float[N] v, seq(float) l)
          => (bool on, float[A] grown, seq(float) more) {
        on = Identity(k)
        grown = Concat<axis = 0>(v, x)
        more = SequenceInsert(l, grown)
      }>
    }""")
    assert check(model, [{"x": X, "m": np.array(m)} for m in (0, 1, 3)]) > 30


@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(nested_models())
def test_split_in_nested_loops_and_branches(model: ir.Model) -> None:
    check(model, RUNS, all_points(model)[::3])


def test_split_does_not_modify_the_model() -> None:
    model = parse(LOOP.replace("COUNT", "m").replace("CONDITION", "c"))
    before = ir.to_bytes(model)
    for point in all_points(model):
        bailout_at(model, point)
    assert ir.to_bytes(model) == before


def test_split_is_deterministic() -> None:
    model = parse(LOOP.replace("COUNT", "m").replace("CONDITION", "c"))
    for one, other in zip(all_points(model), all_points(model), strict=True):
        a, b = bailout_at(model, one), bailout_at(model, other)
        assert ir.to_bytes(a.prefix) == ir.to_bytes(b.prefix)
        assert ir.to_bytes(a.rest) == ir.to_bytes(b.rest)


SCAN = """g (float[N] x, float[T, N] rows) => (float[N] y, float[T, N] all) {
  y, all = Scan <num_scan_inputs = 1, body = b (float[N] s, float[N] r) => (float[N] e, float[N] o) {
    e = Add(s, r)
    o = Relu(e)
  }> (x, rows)
}"""
CALL = """<ir_version: 8, opset_import: ["" : 17, "local" : 1]>
g (float[N] x) => (float[N] y) { y = local.double(x) }
<opset_import: ["" : 17], domain: "local"> double (a) => (b) { c = Relu(a) b = Add(c, c) }"""


@pytest.mark.parametrize(
    ("text", "name", "words"),
    [(SCAN, "e", "a Scan can't be left"), (CALL, "c", "the function local::double, which can't be left")],
)
def test_scan_and_function_bodies_are_refused(text: str, name: str, words: str) -> None:
    model = parse(text)
    point = next(point for point in all_points(model) if point.value.name == name)
    with pytest.raises(UnsupportedModel, match=words):
        bailout_at(model, point)


def test_split_of_a_long_chain() -> None:
    lines = " ".join(f"v{k + 1} = Neg(v{k})" for k in range(10_000))
    model = parse(f"g (float[N] v0) => (float[N] v10000) {{ {lines} }}")
    point = next(point for point in all_points(model) if point.value.name == "v5000")
    bailout = bailout_at(model, point)
    assert len(bailout.rest.graph) == 5000
    assert len(bailout.prefix.graph) == 5001


def test_names_take_precedence_over_numbers() -> None:
    text = """g (float[N] x) => (float[K, M] y) {
        v0 = Abs(x) v1 = NonZero(v0) v7 = Cast<to = 1>(v1) y = Neg(v7) }"""
    model = parse(text)
    for node in model.graph:
        node.outputs[0].name = (node.outputs[0].name or "").removeprefix("v")
    points = exit_points_of(model)
    assert [point.value.name for point in points.points] == ["1"]
    assert points.at("7").value.name == "7" and points.at("0").value.name == "0", "names take precedence"
    assert points.at("#0").value.name == "1"
    assert api.bailout(model, 0, verify=False)[0].handed == ("1",)
    assert api.bailout(model, "7", verify=False)[0].handed == ("7",)
    for text in ("3", "#3"):
        with pytest.raises(UsageError, match="no exit point 3"):
            points.at(text)
    with pytest.raises(UsageError, match="#x"):
        points.at("#x")


def test_both_parts_pass_the_onnx_checker() -> None:
    """The checker requires a shape for each input and output, in branches too."""
    branches = """g (float[N, 3] x, bool c) => (float[A, B] y) {
      y = If(c) <then_branch = t () => (float[C, D] p) { a = Relu(x) k = Exp(a) p = Mul(a, k) },
                 else_branch = e () => (float[C, D] p) { p = Neg(x) }> }"""
    for text in (CHAIN, branches, LOOP.replace("COUNT", "m").replace("CONDITION", "c")):
        model = parse(text)
        for point in all_points(model):
            cut = bailout_at(model, point)
            for part in (cut.prefix, cut.rest):
                onnx.checker.check_model(ir.to_proto(part))


#: The rank of `a` depends on data in a branch, in a loop and behind them, as does the rank of the rows `all`.
RANKS = """<ir_version: 7, opset_import: ["" : OPSET]>
g (float[N, M] x, int64 m) => (float[A] y, float[B] all)
<int64 one = {1}, bool yes = {1}, int64[1] flat = {-1}> {
  size = Size(x)
  c = Equal(size, one)
  a = If(c)<then_branch = t () => (float p) { k = Exp(x) p = Squeeze(k) },
            else_branch = e () => (float[C, D] q) { q = Neg(x) }>
  b, rows = Loop(m, yes, a)<body = l (int64 i, bool on, float s) => (bool off, float[E] f, float[F] r) {
    f = Add(s, a)
    d = Neg(f)
    r = Add(d, f)
    off = Identity(on)
  }>
  y = Reshape(b, flat)
  all = Reshape(rows, flat)
}"""


def _without_ranks(opset: int) -> ir.Model:
    """RANKS without the declared ranks of values whose rank is unknown."""
    proto = onnx.parser.parse_model(RANKS.replace("OPSET", str(opset)))
    for node in proto.graph.node:
        for attribute in node.attribute:
            for value in (*attribute.g.input, *attribute.g.output):
                if value.name in "spqfr":
                    value.type.tensor_type.ClearField("shape")
    onnx.checker.check_model(proto, full_check=True)
    return ir.from_proto(proto)


@pytest.mark.parametrize("opset", [11, 13, 14, 21])
def test_tensors_of_unknown_rank_are_transferred(opset: int) -> None:
    """They are transferred as elements and shape: the checker requires a rank for each input and output."""
    model = _without_ranks(opset)
    runs = [
        {"x": np.array(x, np.float32).reshape(shape), "m": np.array(2)}
        for x, shape in ((3, (1, 1)), ([1, -2, 3], (1, 3)), ([], (3, 0)))
    ]
    assert check(model, runs) > 20
    inputs = {}
    for point in all_points(model):
        cut = bailout_at(model, point)
        inputs[point.value.name] = [value.name for value in cut.rest.graph.inputs]
        for part in (cut.prefix, cut.rest):
            onnx.checker.check_model(ir.to_proto(part), full_check=True)
    assert inputs["a"] == ["a_elements", "a_shape", "m"]
    assert inputs["f"][:2] == ["f_elements", "f_shape"]


def test_unknown_rank_is_refused_in_opsets_without_expand() -> None:
    model = parse("""<ir_version: 3, opset_import: ["" : 7]>
      g (float[N, M] x) => (float[A] y) { a = Squeeze(x) y = Relu(a) }""")
    point = next(point for point in all_points(model) if point.value.name == "a")
    with pytest.raises(UnsupportedModel, match="the rank of 'a' depends on data, and opset 7"):
        bailout_at(model, point)
