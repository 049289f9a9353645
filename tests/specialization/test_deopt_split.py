"""A prefix and the graph that resumes compute what the whole model does."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings

from graphopt import api, ir
from graphopt.errors import UnsupportedModel, UsageError
from graphopt.specialization.deopt import bailout_at
from graphopt.specialization.deopt.exit_points import places_of
from tests.specialization.deopt_runs import RUNS, Resumed, all_places, check, nested_models
from tests.support import parse

X = np.array([1, -2, 3], np.float32)


def _behind(model: ir.Model, name: str) -> Resumed:
    return Resumed(model, next(place for place in all_places(model) if place.value.name == name))


CHAIN = """g (float[N] x, float[N] u) => (float[N] y, float[N] early) <float half = {0.5}> {
  a = Relu(x)
  early = Add(a, half)
  b = Exp(a)
  c = Mul(b, early)
  y = Sub(c, u)
}"""


def test_in_the_main_graph() -> None:
    model = parse(CHAIN)
    assert check(model, [{"x": X, "u": X}]) == 7
    bailout = _behind(model, "b").bailout
    assert [value.name for value in bailout.rest.graph.inputs] == ["b", "early", "u"]
    assert [value.name for value in bailout.prefix.graph.outputs] == ["reached", "b", "early"]
    assert [value.name for value in bailout.rest.graph.outputs] == ["y", "early"]
    assert bailout.occurrence is None


def test_in_branches() -> None:
    model = parse("""g (float[N] x, bool c, bool d) => (float[A] y, float[B] z) <float half = {0.5}> {
      y, z = If(c) <then_branch = t () => (float[N] p, float[N] q) {
          a = Relu(x) p = Add(a, half)
          q = If(d) <then_branch = tt () => (float[N] f) { g1 = Mul(a, a) f = Add(g1, p) },
                     else_branch = te () => (float[N] f) { g1 = Exp(a) f = Add(g1, p) }> },
        else_branch = e () => (float[N] p, float[N] q) { a = Neg(x) p = Sub(a, half) q = Identity(x) }>
    }""")
    runs = [{"x": X, "c": np.array(c), "d": np.array(d)} for c in (True, False) for d in (True, False)]
    assert check(model, runs) == 36
    assert _behind(model, "g1").left(runs[2]) is None  # the other branch is taken


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
def test_in_a_loop(count: str, condition: str, opset: int) -> None:
    model = parse(LOOP.replace("COUNT", count).replace("CONDITION", condition), opset=opset)
    runs = [
        {"x": X, "m": np.array(m), "c": np.array(c)} for m, c in ((0, True), (1, True), (9, True), (9, False))
    ]
    assert check(model, runs) > 20
    resumed = _behind(model, "scaled")
    assert resumed.reached(runs[2]) == 4  # the body ends it before its ninth trip
    names = [value.name for value in resumed.bailout.rest.graph.inputs]
    assert names[0] == "scaled" and {"i", "rows_so_far", "counts_so_far"} <= {*names}
    assert ("m" in names) == bool(count)


def test_rows_so_far_are_joined_with_those_behind() -> None:
    model = parse(LOOP.replace("COUNT", "m").replace("CONDITION", "c"))
    resumed = _behind(model, "end")
    handed = resumed.left({"x": X, "m": np.array(9), "c": np.array(True)}, 2)
    assert handed is not None
    assert handed["i"] == 2 and handed["counts_so_far"][:2].tolist() == [1, 2]


def test_lists_and_growing_tensors() -> None:
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
def test_in_nested_loops_and_branches(model: ir.Model) -> None:
    check(model, RUNS, all_places(model)[::3])


def test_the_model_is_left_alone() -> None:
    model = parse(LOOP.replace("COUNT", "m").replace("CONDITION", "c"))
    before = ir.to_bytes(model)
    for place in all_places(model):
        bailout_at(model, place)
    assert ir.to_bytes(model) == before


def test_the_same_bytes_each_time() -> None:
    model = parse(LOOP.replace("COUNT", "m").replace("CONDITION", "c"))
    for one, other in zip(all_places(model), all_places(model), strict=True):
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
    [(SCAN, "e", "a Scan runs to its end"), (CALL, "c", "the function local::double, which ends whole")],
)
def test_other_owners_are_refused(text: str, name: str, words: str) -> None:
    model = parse(text)
    place = next(place for place in all_places(model) if place.value.name == name)
    with pytest.raises(UnsupportedModel, match=words):
        bailout_at(model, place)


def test_a_long_chain() -> None:
    lines = " ".join(f"v{k + 1} = Neg(v{k})" for k in range(10_000))
    model = parse(f"g (float[N] v0) => (float[N] v10000) {{ {lines} }}")
    place = next(place for place in all_places(model) if place.value.name == "v5000")
    bailout = bailout_at(model, place)
    assert len(bailout.rest.graph) == 5000
    assert len(bailout.prefix.graph) == 5001


def test_values_called_by_numbers_can_be_named() -> None:
    text = """g (float[N] x) => (float[K, M] y) {
        v0 = Abs(x) v1 = NonZero(v0) v7 = Cast<to = 1>(v1) y = Neg(v7) }"""
    model = parse(text)
    for node in model.graph:
        node.outputs[0].name = (node.outputs[0].name or "").removeprefix("v")
    places = places_of(model)
    assert [place.value.name for place in places.places] == ["1"]
    assert places.at("7").value.name == "7" and places.at("0").value.name == "0", "a name wins"
    assert places.at("#0").value.name == "1"
    assert api.bailout(model, 0, verify=False)[0].handed == ("1",)
    assert api.bailout(model, "7", verify=False)[0].handed == ("7",)
    for text in ("3", "#3"):
        with pytest.raises(UsageError, match="there is no place 3"):
            places.at(text)
    with pytest.raises(UsageError, match="#x"):
        places.at("#x")


def test_both_parts_are_models_to_the_checker() -> None:
    """It asks for a shape of each input and output, in branches too."""
    branches = """g (float[N, 3] x, bool c) => (float[A, B] y) {
      y = If(c) <then_branch = t () => (float[C, D] p) { a = Relu(x) k = Exp(a) p = Mul(a, k) },
                 else_branch = e () => (float[C, D] p) { p = Neg(x) }> }"""
    for text in (CHAIN, branches, LOOP.replace("COUNT", "m").replace("CONDITION", "c")):
        model = parse(text)
        for place in all_places(model):
            cut = bailout_at(model, place)
            for part in (cut.prefix, cut.rest):
                onnx.checker.check_model(ir.to_proto(part))


#: The rank of `a` depends on data in a branch, in a loop and behind them; so does that of the rows `all`.
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
def test_tensors_of_unknown_rank_are_handed_over(opset: int) -> None:
    """As their elements and their shape: the checker demands a rank of each input and output."""
    model = _without_ranks(opset)
    runs = [
        {"x": np.array(x, np.float32).reshape(shape), "m": np.array(2)}
        for x, shape in ((3, (1, 1)), ([1, -2, 3], (1, 3)), ([], (3, 0)))
    ]
    assert check(model, runs) > 20
    inputs = {}
    for place in all_places(model):
        cut = bailout_at(model, place)
        inputs[place.value.name] = [value.name for value in cut.rest.graph.inputs]
        for part in (cut.prefix, cut.rest):
            onnx.checker.check_model(ir.to_proto(part), full_check=True)
    assert inputs["a"] == ["a_elements", "a_shape", "m"]
    assert inputs["f"][:2] == ["f_elements", "f_shape"]


def test_an_opset_without_the_operators_for_unknown_ranks_is_refused() -> None:
    model = parse("""<ir_version: 3, opset_import: ["" : 7]>
      g (float[N, M] x) => (float[A] y) { a = Squeeze(x) y = Relu(a) }""")
    place = next(place for place in all_places(model) if place.value.name == "a")
    with pytest.raises(UnsupportedModel, match="the rank of 'a' depends on data, and opset 7"):
        bailout_at(model, place)
