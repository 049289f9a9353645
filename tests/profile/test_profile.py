"""Profiles, strategies, guards, and which specializations follow from them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphopt.errors import InvalidModel, UsageError
from graphopt.ir.signature import Port
from graphopt.profile import (
    Behaviour,
    FusionStrategy,
    Guard,
    Profile,
    Seen,
    assumed,
    branch_inputs,
    merged,
    observe,
    unfit,
    variants_of,
)
from tests.support import parse


def _tokens(batch: int, length: int) -> dict[str, Seen]:
    return {
        "ids": Seen("tensor(int64)", (batch, length)),
        "mask": Seen("tensor(float)", (batch, 1, length)),
    }


def _profile(*sizes: tuple[int, int]) -> Profile:
    profile = Profile("some model")
    for batch, length in sizes:
        profile = profile.seen(_tokens(batch, length))
    return profile


def test_dims_that_varied_become_symbols_and_equal_ones_share_one() -> None:
    profile = _profile((1, 128), (1, 64), (1, 32))
    assert profile.values["ids"].shape == (1, "d0")
    assert profile.values["mask"].shape == (1, 1, "d0")
    assert profile.runs == 3


def test_dims_that_were_equal_by_chance_once_do_not_share_a_symbol() -> None:
    profile = _profile((4, 4), (2, 3))
    assert profile.values["ids"].shape == ("d0", "d1")


def test_contents_that_varied_are_forgotten_and_those_that_did_not_are_kept() -> None:
    profile = Profile("m")
    for step in (1, 2):
        profile = profile.seen(
            {"rate": Seen("tensor(int64)", (), (16000,)), "step": Seen("tensor(int64)", (), (step,))}
        )
    assert profile.values["rate"].ints == (16000,)
    assert profile.values["step"].ints is None


def test_a_value_that_was_absent_once_is_marked() -> None:
    found = merged({"a": Seen("tensor(float)", (1,))}, {})
    assert not found["a"].always


def test_a_profile_is_the_same_after_it_was_written_and_read(tmp_path: Path) -> None:
    profile = _profile((1, 128), (1, 128), (2, 64)).seen({"ids": Seen("tensor(int64)", (1, 1), (5,))})
    profile.write(tmp_path / "p.json")
    assert Profile.read(tmp_path / "p.json") == profile


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"graphopt_profile": 2}', '{"graphopt_profile": 1}'])
def test_what_is_no_profile_is_told_with_its_path(text: str, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text(text)
    with pytest.raises(InvalidModel, match=r"p\.json"):
        Profile.read(path)


@pytest.mark.parametrize(
    "seen",
    [
        {"type": "tensor(int64)", "shape": [2], "ints": [1]},
        {"type": "tensor(int64)", "shape": ["n"], "ints": [1]},
        {"type": "tensor(int64)", "ints": [1]},
        {"type": "tensor(float)", "shape": [1], "ints": [1]},
        {"type": "tensor(uint64)", "shape": [1], "ints": [2**63]},
    ],
)
def test_contents_that_can_not_be_are_refused(seen: dict[str, object]) -> None:
    with pytest.raises(InvalidModel, match="can't be the contents"):
        Seen.from_dict(seen)


def test_contents_that_were_changed_in_patterns_alone_are_not_pinned() -> None:
    data = Profile("m").seen({"k": Seen("tensor(int64)", (), (5,))}).to_dict()
    data["patterns"][0] |= {"count": 3}
    data["patterns"][0]["inputs"]["k"]["ints"] = [6]
    found = variants_of(Profile.from_dict(data))
    assert [variant.guard.inputs["k"].ints for variant in found] == [None]


def test_profiles_of_two_models_do_not_merge() -> None:
    with pytest.raises(UsageError, match="two models"):
        Profile("a").merge(Profile("b"))


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 4)), min_size=2, max_size=6), st.data())
def test_merging_in_two_parts_says_the_same(sizes: list[tuple[int, int]], data: st.DataObject) -> None:
    cut = data.draw(st.integers(1, len(sizes) - 1))
    whole, parts = _profile(*sizes), _profile(*sizes[:cut]).merge(_profile(*sizes[cut:]))
    assert parts.patterns == whole.patterns
    assert parts.values.keys() == whole.values.keys()
    for name, seen in whole.values.items():
        for one, other in zip(seen.shape or (), parts.values[name].shape or (), strict=True):
            assert isinstance(one, int) == isinstance(other, int)


# Strategies ---------------------------------------------------------------------------------


def test_the_default_strategy_is_static_twice_and_dynamic_ten_times() -> None:
    strategy = FusionStrategy.parse("static:2,dynamic:10")
    assert strategy == FusionStrategy()
    assert strategy.depth == 12
    found = [strategy.behaviour(left).value for left in range(12, 0, -1)]
    assert found == ["static"] * 2 + ["dynamic"] * 10
    assert strategy.behaviour(13) is Behaviour.STATIC
    assert str(strategy) == "static:2,dynamic:10"


@pytest.mark.parametrize("text", ["static:2,dynamic:10", "dynamic:1", "static:0", "none"])
def test_a_strategy_is_the_same_after_it_was_written_and_read(text: str) -> None:
    assert str(FusionStrategy.parse(text)) == text
    assert FusionStrategy.parse("none") == FusionStrategy(())


@pytest.mark.parametrize("text", ["", ",", "static", "static:-1", "fast:2", "static:2:3", "none,static:1"])
def test_a_strategy_that_can_not_be_read_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="fusion strategy"):
        FusionStrategy.parse(text)


# Variants -----------------------------------------------------------------------------------


def test_the_most_frequent_patterns_are_static_and_the_rest_is_one_dynamic_variant() -> None:
    profile = _profile((1, 8), (1, 128), (1, 128), (1, 64), (1, 64), (1, 64), (1, 16), (1, 24))
    found = variants_of(profile)
    assert [(variant.name, variant.runs) for variant in found] == [
        ("static-1", 3),
        ("static-2", 2),
        ("dynamic-1", 3),
    ]
    assert found[0].guard.inputs["ids"].shape == (1, 64)
    assert found[2].guard.inputs["ids"].shape == (1, "s0")
    assert found[2].guard.inputs["mask"].shape == (1, 1, "s0")


def test_a_size_of_1_that_is_known_to_vary_is_no_size_in_a_dynamic_variant() -> None:
    [*_, variant] = variants_of(_profile((4, 8), (4, 8), (4, 9), (4, 9), (1, 5), (1, 6)))
    assert variant.name == "dynamic-1" and variant.guard.inputs["ids"].shape == ("s0", "s1")
    assert variant.guard.inputs["mask"].shape == ("s0", 1, "s1")


def test_fifteen_shapes_of_one_pattern_need_three_variants() -> None:
    found = variants_of(_profile(*((2, length) for length in range(2, 17))))
    assert [variant.name for variant in found] == ["static-1", "static-2", "dynamic-1"]


def test_a_single_pattern_that_is_to_be_dynamic_keeps_sizes_of_1_only() -> None:
    [variant] = variants_of(_profile((1, 8)), FusionStrategy.parse("dynamic:3"))
    assert variant.guard.inputs["mask"].shape == (1, 1, "s0")


def test_limits_pass_over_what_is_too_much() -> None:
    profile = _profile((1, 2), (1, 3), (1, 4), (1, 5))
    strategy = FusionStrategy.parse("static:4")
    assert len(variants_of(profile, strategy)) == 4
    assert len(variants_of(profile, strategy, most=1)) == 1
    assert len(variants_of(profile, strategy, limits={Behaviour.STATIC: 2})) == 2


def test_runs_without_elements_are_not_specialized_for() -> None:
    assert variants_of(_profile((0, 8))) == []


def test_contents_are_pinned_only_where_they_were_seen_twice() -> None:
    once = Profile("m").seen({"rate": Seen("tensor(int64)", (), (16000,))})
    twice = once.merge(once)
    assert variants_of(once)[0].guard.inputs["rate"].ints is None
    assert variants_of(twice)[0].guard.inputs["rate"].ints == (16000,)


def test_contents_count_as_seen_twice_only_if_they_were_fed_twice() -> None:
    """An input with a default that was fed once and absent once was not seen twice."""
    x, rate = Seen("tensor(float)", (1,)), Seen("tensor(int64)", (), (7,))
    behaviours = (Behaviour.STATIC, Behaviour.DYNAMIC)
    once = Profile("m").seen({"x": x, "rate": rate}).seen({"x": x})
    twice = once.seen({"x": replace(x, shape=(2,)), "rate": rate})
    for profile, expected in ((once, None), (twice, (7,))):
        guards = [variant.guard for variant in variants_of(profile) if "rate" in variant.guard.inputs]
        assert guards and {guard.inputs["rate"].ints for guard in guards} == {expected}
        only = replace(profile, patterns=tuple(p for p in profile.patterns if "rate" in p.inputs))
        assert {assumed(only, behaviour).inputs["rate"].ints for behaviour in behaviours} == {expected}


def test_contents_are_not_pinned_where_their_number_may_vary() -> None:
    profile = Profile("m")
    for _ in range(2):
        profile = profile.seen({"ids": Seen("tensor(int64)", (1, 3), (7, 8, 9))})
    [static, dynamic] = [assumed(profile, b).inputs["ids"] for b in (Behaviour.STATIC, Behaviour.DYNAMIC)]
    assert (static.shape, static.ints) == ((1, 3), (7, 8, 9))
    assert (dynamic.shape, dynamic.ints) == ((1, "s0"), None)
    [variant] = variants_of(profile, FusionStrategy.parse("dynamic:1"))
    assert variant.guard.inputs["ids"] == dynamic


def test_contents_that_varied_are_assumed_of_no_dynamic_variant() -> None:
    profile = Profile("m")
    for size, k in ((1, 5), (1, 5), (1, 5), (2, 6), (2, 6)):
        profile = profile.seen({"x": Seen("tensor(float)", (size,)), "k": Seen("tensor(int64)", (), (k,))})
    static, dynamic = variants_of(profile, FusionStrategy.parse("static:1,dynamic:1"))
    assert static.guard.inputs["k"].ints == (5,) and dynamic.guard.inputs["k"].ints is None


def test_contents_of_another_size_than_the_patterns_tell_are_not_assumed() -> None:
    data = Profile("m").seen({"k": Seen("tensor(int64)", (2,))}).to_dict()
    data["patterns"][0] |= {"count": 3}
    data["values"]["k"] |= {"shape": [3], "ints": [1, 2, 3]}
    [variant] = variants_of(Profile.from_dict(data))
    assert variant.guard.inputs["k"] == Seen("tensor(int64)", (2,))


def test_a_behaviour_without_a_limit_has_none() -> None:
    profile = Profile("m")
    for rank in (1, 2, 3):
        profile = profile.seen({"x": Seen("tensor(float)", (5,) * rank)})
    found = variants_of(profile, FusionStrategy.parse("static:1,dynamic:2"), limits={Behaviour.STATIC: 1})
    assert [variant.name for variant in found] == ["static-1", "dynamic-1", "dynamic-2"]


def test_what_was_seen_is_assumed_together() -> None:
    """Of an input that is absent at times, or of several ranks, no shape is assumed."""
    x, y = Seen("tensor(float)", (4, 4)), Seen("tensor(float)", (4,))
    found = assumed(Profile("m").seen({"x": x, "y": y}).seen({"x": y}), Behaviour.STATIC)
    assert found.inputs["x"].shape is None and found.inputs["x"].always
    assert found.inputs["y"] == Seen("tensor(float)", always=False)
    varied = Profile("m").seen({"x": x, "y": y}).seen({"x": replace(x, shape=(4, 5)), "y": y})
    assert str(assumed(varied, Behaviour.STATIC)) == "x: f32[4, s0]; y: f32[4]"
    assert str(assumed(varied, Behaviour.DYNAMIC)) == "x: f32[s0, s1]; y: f32[s0]"


# What one run shows -------------------------------------------------------------------------


class _Value:
    """Has a method where arrays have sizes, as onnxruntime's own values do."""

    def shape(self) -> list[int]:
        return [1]


def test_what_a_run_shows() -> None:
    types = {
        "x": "tensor(int64)",
        "s": "seq(tensor(float))",
        "o": "optional(tensor(int64))",
        "v": "tensor(float)",
    }
    values = {
        "v": _Value(),
        "s": [np.zeros(1)],
        "x": np.array([1, 2]),
        "o": np.array([3]),
        "other": np.array(1),
    }
    found = observe(types, values)
    assert found["x"] == Seen("tensor(int64)", (2,), (1, 2))
    assert {name: seen.shape for name, seen in found.items()} == {"x": (2,), "s": None, "o": None, "v": None}
    assert list(observe(types, {"o": None, "x": np.zeros((1, 0), np.int64)})) == ["x"]
    assert observe(types, values, contents=["o"])["x"].ints is None


@pytest.mark.parametrize(
    ("port", "value", "why"),
    [
        (Port("x", "tensor(float)", (2, "N")), np.zeros((2, 3), np.float32), None),
        (Port("x", "tensor(float)", (2, "N")), np.zeros((3, 3), np.float32), "not of the declared shape"),
        (Port("x", "tensor(float)", (2, "N")), np.zeros(2, np.float32), "not of the declared shape"),
        (Port("x", "tensor(float)", None), np.zeros(2, np.float32), None),
        (Port("x", "tensor(float)", None), np.zeros(2), "holds float64, not float"),
        (Port("x", "tensor(string)", None), np.array(["a"]), None),
        (Port("x", "tensor(string)", None), np.zeros(1), "holds float64, not string"),
        (Port("x", "tensor(float)", None), np.zeros((1, 0), np.float32), "is empty"),
        (Port("x", "tensor(float)", None), [1.0], "is no array"),
        (Port("x", "tensor(float)", None), _Value(), "is no array"),
        (Port("x", "tensor(float)", None), None, "is not fed"),
        (Port("x", "tensor(float)", None, "overridable"), None, None),
        (Port("x", "seq(tensor(float))", None), [], None),
    ],
)
def test_what_nothing_can_be_specialized_for(port: Port, value: object, why: str | None) -> None:
    found = unfit(port, value)
    assert found == (
        None if why is None else f"'x' {why}" if why.startswith(("is", "holds")) else f"'x' is {why}"
    )


# Guards -------------------------------------------------------------------------------------

_GUARD = Guard(
    {
        "x": Seen("tensor(float)", (2, "n")),
        "y": Seen("tensor(float)", ("n",)),
        "rate": Seen("tensor(int64)", (), (16000,)),
    },
    absent=("scale",),
)


def _feeds(**changed: Any) -> dict[str, np.ndarray]:
    fitting = {"x": np.zeros((2, 3), np.float32), "y": np.zeros(3, np.float32), "rate": np.array(16000)}
    return fitting | changed


def test_a_guard_holds_where_all_is_as_assumed() -> None:
    assert _GUARD.holds(_feeds())
    assert _GUARD.holds(_feeds(x=np.zeros((2, 0), np.float32), y=np.zeros(0, np.float32)))


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"x": np.zeros((3, 3), np.float32)}, "dim 0 of 'x' is 3, not 2"),
        ({"x": np.zeros((2, 3))}, "'x' holds float64, not float32"),
        ({"x": np.zeros((2, 3, 1), np.float32)}, "'x' has 3 dims, not 2"),
        ({"y": np.zeros(4, np.float32)}, "dim 0 of 'y' is 4, not 3 as dim 1 of 'x'"),
        ({"rate": np.array(8000)}, "'rate' holds 8000, not 16000"),
        ({"scale": None}, "'scale' is fed, and its default is assumed"),
        ({"scale": np.zeros(1)}, "'scale' is fed, and its default is assumed"),
    ],
)
def test_a_guard_tells_what_is_otherwise(changed: dict[str, Any], why: str) -> None:
    feeds = _feeds(**changed)
    assert not _GUARD.holds(feeds)
    assert _GUARD.explain(feeds) == [why]


def test_a_guard_is_the_same_after_json() -> None:
    assert Guard.from_dict(_GUARD.to_dict()) == _GUARD


@pytest.mark.parametrize(
    ("inputs", "admitted"),
    [
        ({"x": (2, 3), "y": (3,)}, True),
        ({"x": (2, 3), "y": (4,)}, False),
        ({"x": (3, 3), "y": (3,)}, False),
        ({"x": (2, 3, 1), "y": (3,)}, False),
        ({"x": (2, 3)}, False),
        ({"x": (2, 3), "y": (3,), "z": (1,)}, False),
        ({"x": None, "y": (3,)}, False),
    ],
)
def test_what_runs_a_guard_admits(inputs: dict[str, tuple[int, ...] | None], admitted: bool) -> None:
    guard = Guard({"x": Seen("tensor(float)", (2, "n")), "y": Seen("tensor(float)", ("n",))})
    assert guard.admits({name: Seen("tensor(float)", shape) for name, shape in inputs.items()}) == admitted


def test_a_guard_that_knows_no_shape_admits_none() -> None:
    guard = Guard({"x": Seen("seq(tensor(float))")})
    assert guard.admits({"x": Seen("seq(tensor(float))")})
    assert not guard.admits({"x": Seen("tensor(float)", (1,))})


def test_a_question_mark_asserts_nothing() -> None:
    guard = Guard({"x": Seen("tensor(float)", ("?", "?")), "y": Seen("tensor(float)", ("?",))})
    assert guard.holds({"x": np.zeros((2, 3), np.float32), "y": np.zeros(4, np.float32)})
    assert not guard.holds({"x": np.zeros(2, np.float32), "y": np.zeros(4, np.float32)})
    assert guard.admits({"x": Seen("tensor(float)", (2, 3)), "y": Seen("tensor(float)", (4,))})
    assert merged(guard.inputs, guard.inputs) == dict(guard.inputs)
    found = assumed(Profile("m").seen(guard.inputs), Behaviour.DYNAMIC)
    assert found.inputs == guard.inputs


_RATES = """g (float[N, T] x, int64 rate, float[1] f) => (float[N, T] y) {
    limit = Constant<value = int64 {16000}>() fast = Equal(rate, limit)
    y = If<then_branch = a () => (float[N, T] p) { p = Relu(x) },
           else_branch = b () => (float[N, T] q) { q = Neg(x) }>(fast)
}"""


def test_inputs_that_alone_choose_a_branch_are_found() -> None:
    assert branch_inputs(parse(_RATES)) == {"rate"}
    by_data = _RATES.replace("Equal(rate, limit)", "Greater(f, f)")
    also_by_data = _RATES.replace(
        "fast = Equal(rate, limit)", "e = Equal(rate, limit) g = Greater(f, f) fast = And(e, g)"
    )
    by_sizes = _RATES.replace("Equal(rate, limit)", "Equal(n, limit)").replace(
        "limit =", "n = Size(x) limit ="
    )
    for text in (by_data, also_by_data, by_sizes):
        assert branch_inputs(parse(text)) == set()


def test_inputs_of_nested_branches_and_of_conditions_behind_shapes_are_found() -> None:
    nested = _RATES.replace(
        "p = Relu(x)",
        "s = Shape(x) r = Cast<to = 7>(rate) e = Less(s, r) k = ReduceMin<keepdims = 0>(e2)"
        " e2 = Cast<to = 6>(e) c = Cast<to = 9>(k)"
        " p = If<then_branch = c1 () => (float[N, T] u) { u = Exp(x) },"
        " else_branch = d1 () => (float[N, T] v) { v = Abs(x) }>(c)",
    ).replace("Equal(rate, limit)", "Equal(limit, limit)")
    assert branch_inputs(parse(nested)) == {"rate"}


def test_contents_that_choose_a_branch_are_pinned_at_once_in_static_specializations() -> None:
    rate, x = Seen("tensor(int64)", (), (16000,)), Seen("tensor(float)", (1, 8))
    once = Profile("m").seen({"x": x, "rate": rate})
    [variant] = variants_of(once, FusionStrategy.parse("static:1"), pinned={"rate"})
    assert variant.guard.inputs["rate"].ints == (16000,)
    assert assumed(once, Behaviour.STATIC, {"rate"}).inputs["rate"].ints == (16000,)
    assert assumed(once, Behaviour.DYNAMIC, {"rate"}).inputs["rate"].ints is None
    both = once.seen({"x": x, "rate": replace(rate, ints=(8000,))})
    assert assumed(both, Behaviour.STATIC, {"rate"}).inputs["rate"].ints is None
