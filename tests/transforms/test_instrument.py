"""Instrumenting models, and removing profiling nodes."""

from __future__ import annotations

import numpy as np
import pytest

import graphopt
from graphopt import ir
from graphopt.context import Observer, Refusal
from graphopt.ops import graphopt_operators
from graphopt.profile import Profile
from graphopt.profile.annotations import annotate, annotation_of
from graphopt.profile.value_profile import ValueProfile
from tests.model_testing import ops, parse, run_pipeline

#: The size of u depends on data, in a branch too.
FOUND = """
g (float[N] x, bool c) => (float[M] y) {
  n = NonZero(x)
  u = Transpose <perm = [1, 0]> (n)
  z = GatherND(x, u)
  y = If (c) <
    then_branch = a () => (float[K] p) { inner = NonZero(z) s = Squeeze(inner) p = Cast <to = 1> (s) },
    else_branch = b () => (float[K] q) { q = Neg(z) }
  >
}
"""


def watched(model: ir.Model) -> list[str]:
    return [
        graphopt_operators.watched_name(node)
        for graph in ir.graphs_of(model)
        for node in graph
        if graphopt_operators.is_profiling_node(node)
    ]


@pytest.mark.parametrize(
    ("watch", "expected"),
    [
        ("inputs", {"x", "c"}),
        ("shapes", {"x", "c", "n", "y", "inner", "s", "p"}),
        ("all", {"x", "c", "n", "u", "z", "y", "inner", "s", "p", "q"}),
    ],
)
def test_watched_values(watch: str, expected: set[str]) -> None:
    model = parse(FOUND)
    run_pipeline(model, f"instrument{{watch={watch}}}")
    assert set(watched(model)) == expected and len(watched(model)) == len(expected)
    assert ops(model).count("Counter") == 1


@pytest.mark.parametrize("watch", ["shapes", "all"])
def test_values_are_watched_once(watch: str) -> None:
    model = parse(FOUND)
    run_pipeline(model, f"instrument{{watch={watch}}}")
    before = watched(model)
    _, cx = run_pipeline(model, f"instrument{{watch={watch}}},instrument{{watch=inputs}}")
    assert cx.actions == 0 and watched(model) == before


def test_instrumented_model_runs_and_its_nodes_are_removed() -> None:
    model = parse(FOUND)
    feeds = {"x": np.array([0, 2, 0, 3], np.float32), "c": np.array(True)}
    expected = graphopt.run(parse(FOUND), feeds)["y"]
    run_pipeline(model, "instrument{watch=all}")
    np.testing.assert_array_equal(graphopt.run(model, feeds)["y"], expected)
    run_pipeline(model, "drop-counters")
    assert "Counter" not in ops(model) and watched(model)
    run_pipeline(model, "remove-profile-nodes")
    assert not watched(model) and not model.functions
    assert sorted(ops(model)) == sorted(ops(parse(FOUND)))


def test_specialize_types_removes_profiling_nodes_and_drop_counters_keeps_annotations() -> None:
    model = parse("g (float[N] x) => (float[N] y) { t = Neg(x) y = Abs(t) }")
    run_pipeline(model, "instrument{watch=all}")
    annotate(model, {"x": ValueProfile("tensor(float)", (3,))})
    run_pipeline(model, "drop-counters")
    assert annotation_of(model.graph.inputs[0]) is not None
    run_pipeline(model, "specialize-types")
    assert ops(model) == ["Neg", "Abs"] and str(model.graph.inputs[0].shape) == "[3]"


class Refusals(Observer):
    """Collects reasons by value."""

    def __init__(self) -> None:
        self.reasons: dict[str | None, str] = {}

    def refused(self, refusal: Refusal) -> None:
        self.reasons[refusal.value] = refusal.reason


LOOP = """
g (float[N] x, int64 n, bool go) => (float[M] y, int64[1, P] t) {
    a = NonZero(x)
    y = Loop (n, go, x) <body = b (int64 i, bool c, float[K] v) => (bool d, float[L] w) {
        d = Identity(c)
        f = NonZero(v)
        u = Squeeze(f)
        w = Cast <to = 1> (u)
    }>
    t = NonZero(y)
}
"""


def test_values_beyond_the_limit_are_left_out_with_the_reason() -> None:
    model, found = parse(LOOP), Refusals()
    run_pipeline(model, "instrument{limit=1}", observers=(found,))
    assert set(watched(model)) == {"x", "n", "go", "a"}
    assert found.reasons["t"] == "the limit of 1 value is reached"


def test_values_of_unknown_rank_in_loops_are_left_out() -> None:
    text = LOOP.replace("float[K] v", "float[K, J] v")
    model, found = parse(text.replace("Squeeze(f)", "Reshape(f, f)")), Refusals()
    run_pipeline(model, "instrument", observers=(found,))
    assert "w" not in watched(model) or found.reasons == {}
    assert found.reasons.get("u", "its rank is unknown, and it is in a loop").startswith(
        "its rank is unknown"
    )


def test_names_of_several_bodies_are_left_out() -> None:
    model, found = (
        parse(FOUND.replace("=> (float[K] q) { q = Neg(z) }", "=> (float[K] p) { p = Neg(z) }")),
        Refusals(),
    )
    run_pipeline(model, "instrument{watch=all}", observers=(found,))
    assert found.reasons["p"] == "its name occurs in several bodies" and "p" not in watched(model)


def test_functions_of_the_file_with_the_same_names_are_not_trusted() -> None:
    model = parse("g (float[N] x) => (float[N] y) { t = Neg(x) y = Abs(t) }")
    run_pipeline(model, "instrument")
    function = model.functions[graphopt_operators.GUARD_DOMAIN, graphopt_operators.PROFILE, ""]
    function[0].op_type = "Neg"
    before = watched(model)
    found = Refusals()
    run_pipeline(model, "remove-profile-nodes,instrument", observers=(found,))
    assert watched(model) == before
    assert found.reasons[None] == "the model has another function graphopt.profile::Profile"


def test_old_models_are_refused() -> None:
    model, found = parse("g (float[N] x) => (float[N] y) { y = Abs(x) }", ir_version=7), Refusals()
    run_pipeline(model, "instrument", observers=(found,))
    assert not watched(model) and "functions came with IR version 8" in found.reasons[None]


def test_gradients_are_watched_before_their_types() -> None:
    text = """g (float[N] x, float[N] w, float[N] v) => (float[N] dx) {
        dy = Mul(w, v)
        dx = graphopt.ad.GradOf<body = r () => (float[N] q) { c = Cos(x) q = Mul(dy, c) }> (dy, x)
    }"""
    model = parse(text, domains=', "graphopt.ad" : 1')
    run_pipeline(model, "instrument{watch=all},profile-autograd-zero")
    run_pipeline(model, "profile-autograd-zero")  # each gradient is watched once
    (zero,) = (node for node in model.graph if node.op_type == graphopt_operators.PROFILE_ZERO)
    (reader,) = ir.readers(zero.outputs[0])
    assert zero.inputs[0] is not None and zero.inputs[0].name == "dy"
    assert reader.op_type == graphopt_operators.PROFILE
    for factor in (0, 1):
        feeds = {name: np.full(2, value, np.float32) for name, value in (("x", 1), ("w", factor), ("v", 1))}
        profile = graphopt.record_profile(parse(text, domains=', "graphopt.ad" : 1'), [feeds])
        assert profile.zero_gradients == {"dy": factor == 0}
    assert Profile.from_dict(profile.to_dict()) == profile
