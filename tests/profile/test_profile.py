"""Profiles, strategies, guards and the variants derived from them."""

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
    FusionStrategy,
    Guard,
    Profile,
    SpecializationKind,
    ValueProfile,
    branch_inputs,
    guard_for_all,
    merged,
    observe,
    obstacle_to_specialization,
    variants_of,
)
from tests.model_testing import parse


def _tokens(batch: int, length: int) -> dict[str, ValueProfile]:
    return {
        "ids": ValueProfile("tensor(int64)", (batch, length)),
        "mask": ValueProfile("tensor(float)", (batch, 1, length)),
    }


def _profile(*sizes: tuple[int, int]) -> Profile:
    profile = Profile("some model")
    for batch, length in sizes:
        profile = profile.with_run(_tokens(batch, length))
    return profile


def test_varying_dims_become_symbols_and_equal_dims_share_one() -> None:
    profile = _profile((1, 128), (1, 64), (1, 32))
    assert profile.values["ids"].shape == (1, "d0")
    assert profile.values["mask"].shape == (1, 1, "d0")
    assert profile.runs == 3


def test_dims_equal_in_one_run_only_do_not_share_a_symbol() -> None:
    profile = _profile((4, 4), (2, 3))
    assert profile.values["ids"].shape == ("d0", "d1")


def test_merging_keeps_equal_contents_and_drops_others() -> None:
    profile = Profile("m")
    for step in (1, 2):
        profile = profile.with_run(
            {
                "rate": ValueProfile("tensor(int64)", (), (16000,)),
                "step": ValueProfile("tensor(int64)", (), (step,)),
            }
        )
    assert profile.values["rate"].ints == (16000,)
    assert profile.values["step"].ints is None


def test_value_absent_in_one_run_is_not_always_present() -> None:
    found = merged({"a": ValueProfile("tensor(float)", (1,))}, {})
    assert not found["a"].always


def test_profile_round_trips_through_a_file(tmp_path: Path) -> None:
    profile = _profile((1, 128), (1, 128), (2, 64)).with_run(
        {"ids": ValueProfile("tensor(int64)", (1, 1), (5,))}
    )
    profile.write(tmp_path / "p.json")
    assert Profile.read(tmp_path / "p.json") == profile


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"graphopt_profile": 2}', '{"graphopt_profile": 1}'])
def test_malformed_profile_error_names_the_file(text: str, tmp_path: Path) -> None:
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
        {"type": "tensor(uint8)", "shape": [1], "ints": [256]},
        {"type": "tensor(int4)", "shape": [1], "ints": [8]},
        {"type": "tensor(bool)", "shape": [1], "ints": [2]},
    ],
)
def test_impossible_contents_are_rejected(seen: dict[str, object]) -> None:
    with pytest.raises(InvalidModel, match="can't be the contents"):
        ValueProfile.from_dict(seen)


def test_contents_edited_in_patterns_only_are_not_pinned() -> None:
    data = Profile("m").with_run({"k": ValueProfile("tensor(int64)", (), (5,))}).to_dict()
    data["patterns"][0] |= {"count": 3}
    data["patterns"][0]["inputs"]["k"]["ints"] = [6]
    found = variants_of(Profile.from_dict(data))
    assert [variant.guard.inputs["k"].ints for variant in found] == [None]


def test_profiles_of_different_models_do_not_merge() -> None:
    with pytest.raises(UsageError, match="different models"):
        Profile("a").merge(Profile("b"))


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 4)), min_size=2, max_size=6), st.data())
def test_merging_is_associative(sizes: list[tuple[int, int]], data: st.DataObject) -> None:
    cut = data.draw(st.integers(1, len(sizes) - 1))
    whole, parts = _profile(*sizes), _profile(*sizes[:cut]).merge(_profile(*sizes[cut:]))
    assert parts.patterns == whole.patterns
    assert parts.values.keys() == whole.values.keys()
    for name, seen in whole.values.items():
        for one, other in zip(seen.shape or (), parts.values[name].shape or (), strict=True):
            assert isinstance(one, int) == isinstance(other, int)


# Strategies ---------------------------------------------------------------------------------


def test_default_strategy_is_static_twice_and_dynamic_ten_times() -> None:
    strategy = FusionStrategy.parse("static:2,dynamic:10")
    assert strategy == FusionStrategy()
    assert strategy.depth == 12
    found = [strategy.kind(left).value for left in range(12, 0, -1)]
    assert found == ["static"] * 2 + ["dynamic"] * 10
    assert strategy.kind(13) is SpecializationKind.STATIC
    assert str(strategy) == "static:2,dynamic:10"


@pytest.mark.parametrize("text", ["static:2,dynamic:10", "dynamic:1", "static:0", "none"])
def test_strategy_text_round_trips(text: str) -> None:
    assert str(FusionStrategy.parse(text)) == text
    assert FusionStrategy.parse("none") == FusionStrategy(())


def test_strategies_have_names_and_are_given_as_pairs() -> None:
    assert str(FusionStrategy.parse("always-dynamic")) == "dynamic:12"
    assert FusionStrategy.of("Static-Then-Dynamic") == FusionStrategy()
    assert FusionStrategy.of([("STATIC", 2), ("DYNAMIC", 10)]) == FusionStrategy()
    assert FusionStrategy.of(FusionStrategy()) == FusionStrategy()
    for wrong in ([("STATIC", -1)], [("FAST", 1)], ["static"], 5, [("STATIC", "x")]):
        with pytest.raises(UsageError, match="invalid fusion strategy"):
            FusionStrategy.of(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", ",", "static", "static:-1", "fast:2", "static:2:3", "none,static:1"])
def test_invalid_strategy_text_is_rejected(text: str) -> None:
    with pytest.raises(UsageError, match="fusion strategy"):
        FusionStrategy.parse(text)


# Variants -----------------------------------------------------------------------------------


def test_most_frequent_patterns_become_static_and_the_rest_one_dynamic_variant() -> None:
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


def test_size_1_that_varied_is_symbolic_in_a_dynamic_variant() -> None:
    [*_, variant] = variants_of(_profile((4, 8), (4, 8), (4, 9), (4, 9), (1, 5), (1, 6)))
    assert variant.name == "dynamic-1" and variant.guard.inputs["ids"].shape == ("s0", "s1")
    assert variant.guard.inputs["mask"].shape == ("s0", 1, "s1")


def test_fifteen_shapes_of_one_rank_need_three_variants() -> None:
    found = variants_of(_profile(*((2, length) for length in range(2, 17))))
    assert [variant.name for variant in found] == ["static-1", "static-2", "dynamic-1"]


def test_dynamic_variant_of_a_single_pattern_keeps_only_sizes_of_1() -> None:
    [variant] = variants_of(_profile((1, 8)), FusionStrategy.parse("dynamic:3"))
    assert variant.guard.inputs["mask"].shape == (1, 1, "s0")


def test_limits_skip_excess_variants() -> None:
    profile = _profile((1, 2), (1, 3), (1, 4), (1, 5))
    strategy = FusionStrategy.parse("static:4")
    assert len(variants_of(profile, strategy)) == 4
    assert len(variants_of(profile, strategy, most=1)) == 1
    assert len(variants_of(profile, strategy, limits={SpecializationKind.STATIC: 2})) == 2


def test_empty_inputs_have_no_variant() -> None:
    assert variants_of(_profile((0, 8))) == []


def test_contents_are_pinned_only_if_observed_twice() -> None:
    once = Profile("m").with_run({"rate": ValueProfile("tensor(int64)", (), (16000,))})
    twice = once.merge(once)
    assert variants_of(once)[0].guard.inputs["rate"].ints is None
    assert variants_of(twice)[0].guard.inputs["rate"].ints == (16000,)


def test_runs_without_the_input_do_not_count_towards_pinning() -> None:
    """Contents are not pinned if an optional input was fed in one of two runs only."""
    x, rate = ValueProfile("tensor(float)", (1,)), ValueProfile("tensor(int64)", (), (7,))
    behaviours = (SpecializationKind.STATIC, SpecializationKind.DYNAMIC)
    once = Profile("m").with_run({"x": x, "rate": rate}).with_run({"x": x})
    twice = once.with_run({"x": replace(x, shape=(2,)), "rate": rate})
    for profile, expected in ((once, None), (twice, (7,))):
        guards = [variant.guard for variant in variants_of(profile) if "rate" in variant.guard.inputs]
        assert guards and {guard.inputs["rate"].ints for guard in guards} == {expected}
        only = replace(profile, patterns=tuple(p for p in profile.patterns if "rate" in p.inputs))
        assert {guard_for_all(only, behaviour).inputs["rate"].ints for behaviour in behaviours} == {expected}


def test_contents_of_varying_size_are_not_pinned() -> None:
    profile = Profile("m")
    for _ in range(2):
        profile = profile.with_run({"ids": ValueProfile("tensor(int64)", (1, 3), (7, 8, 9))})
    [static, dynamic] = [
        guard_for_all(profile, b).inputs["ids"]
        for b in (SpecializationKind.STATIC, SpecializationKind.DYNAMIC)
    ]
    assert (static.shape, static.ints) == ((1, 3), (7, 8, 9))
    assert (dynamic.shape, dynamic.ints) == ((1, "s0"), None)
    [variant] = variants_of(profile, FusionStrategy.parse("dynamic:1"))
    assert variant.guard.inputs["ids"] == dynamic


def test_varying_contents_are_not_pinned_in_dynamic_variants() -> None:
    profile = Profile("m")
    for size, k in ((1, 5), (1, 5), (1, 5), (2, 6), (2, 6)):
        profile = profile.with_run(
            {"x": ValueProfile("tensor(float)", (size,)), "k": ValueProfile("tensor(int64)", (), (k,))}
        )
    static, dynamic = variants_of(profile, FusionStrategy.parse("static:1,dynamic:1"))
    assert static.guard.inputs["k"].ints == (5,) and dynamic.guard.inputs["k"].ints is None


def test_contents_that_contradict_the_pattern_size_are_not_pinned() -> None:
    data = Profile("m").with_run({"k": ValueProfile("tensor(int64)", (2,))}).to_dict()
    data["patterns"][0] |= {"count": 3}
    data["values"]["k"] |= {"shape": [3], "ints": [1, 2, 3]}
    [variant] = variants_of(Profile.from_dict(data))
    assert variant.guard.inputs["k"] == ValueProfile("tensor(int64)", (2,))


def test_kind_without_a_limit_is_unlimited() -> None:
    profile = Profile("m")
    for rank in (1, 2, 3):
        profile = profile.with_run({"x": ValueProfile("tensor(float)", (5,) * rank)})
    found = variants_of(
        profile, FusionStrategy.parse("static:1,dynamic:2"), limits={SpecializationKind.STATIC: 1}
    )
    assert [variant.name for variant in found] == ["static-1", "dynamic-1", "dynamic-2"]


def test_guard_for_all_covers_all_runs() -> None:
    """An input that is sometimes absent, or of varying rank, has no shape in the guard."""
    x, y = ValueProfile("tensor(float)", (4, 4)), ValueProfile("tensor(float)", (4,))
    found = guard_for_all(
        Profile("m").with_run({"x": x, "y": y}).with_run({"x": y}), SpecializationKind.STATIC
    )
    assert found.inputs["x"].shape is None and found.inputs["x"].always
    assert found.inputs["y"] == ValueProfile("tensor(float)", always=False)
    varied = Profile("m").with_run({"x": x, "y": y}).with_run({"x": replace(x, shape=(4, 5)), "y": y})
    assert str(guard_for_all(varied, SpecializationKind.STATIC)) == "x: f32[4, s0]; y: f32[4]"
    assert str(guard_for_all(varied, SpecializationKind.DYNAMIC)) == "x: f32[s0, s1]; y: f32[s0]"


# What one run shows -------------------------------------------------------------------------


class _Value:
    """``shape`` is a method, as of an OrtValue."""

    def shape(self) -> list[int]:
        return [1]


def test_observe_records_types_shapes_and_contents() -> None:
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
    assert found["x"] == ValueProfile("tensor(int64)", (2,), (1, 2))
    assert {name: seen.shape for name, seen in found.items()} == {"x": (2,), "s": None, "o": None, "v": None}
    assert list(observe(types, {"o": None, "x": np.zeros((1, 0), np.int64)})) == ["x"]
    assert observe(types, values, contents=["o"])["x"].ints is None


@pytest.mark.parametrize(
    ("port", "value", "why"),
    [
        (Port("x", "tensor(float)", (2, "N")), np.zeros((2, 3), np.float32), None),
        (
            Port("x", "tensor(float)", (2, "N")),
            np.zeros((3, 3), np.float32),
            "does not have the declared shape",
        ),
        (Port("x", "tensor(float)", (2, "N")), np.zeros(2, np.float32), "does not have the declared shape"),
        (Port("x", "tensor(float)", None), np.zeros(2, np.float32), None),
        (Port("x", "tensor(float)", None), np.zeros(2), "holds float64, not float"),
        (Port("x", "tensor(string)", None), np.array(["a"]), None),
        (Port("x", "tensor(string)", None), np.zeros(1), "holds float64, not string"),
        (Port("x", "tensor(float)", None), np.zeros((1, 0), np.float32), "is empty"),
        (Port("x", "tensor(float)", None), [1.0], "is not an array"),
        (Port("x", "tensor(float)", None), _Value(), "is not an array"),
        (Port("x", "tensor(float)", None), None, "is not fed"),
        (Port("x", "tensor(float)", None, "overridable"), None, None),
        (Port("x", "seq(tensor(float))", None), [], None),
    ],
)
def test_unfit_reports_why_an_input_is_unsupported(port: Port, value: object, why: str | None) -> None:
    found = obstacle_to_specialization(port, value)
    assert found == (None if why is None else f"'x' {why}")


# Guards -------------------------------------------------------------------------------------

_GUARD = Guard(
    {
        "x": ValueProfile("tensor(float)", (2, "n")),
        "y": ValueProfile("tensor(float)", ("n",)),
        "rate": ValueProfile("tensor(int64)", (), (16000,)),
    },
    absent=("scale",),
)


def _feeds(**changed: Any) -> dict[str, np.ndarray]:
    fitting = {"x": np.zeros((2, 3), np.float32), "y": np.zeros(3, np.float32), "rate": np.array(16000)}
    return fitting | changed


def test_guard_holds_if_all_assumptions_hold() -> None:
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
        ({"scale": None}, "'scale' is fed, but its default is assumed"),
        ({"scale": np.zeros(1)}, "'scale' is fed, but its default is assumed"),
    ],
)
def test_guard_explains_violations(changed: dict[str, Any], why: str) -> None:
    feeds = _feeds(**changed)
    assert not _GUARD.holds(feeds)
    assert _GUARD.explain(feeds) == [why]


def test_guard_round_trips_through_json() -> None:
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
def test_guard_admits_matching_input_profiles(
    inputs: dict[str, tuple[int, ...] | None], admitted: bool
) -> None:
    guard = Guard({"x": ValueProfile("tensor(float)", (2, "n")), "y": ValueProfile("tensor(float)", ("n",))})
    assert (
        guard.admits({name: ValueProfile("tensor(float)", shape) for name, shape in inputs.items()})
        == admitted
    )


def test_guard_without_a_shape_admits_only_unknown_shapes() -> None:
    guard = Guard({"x": ValueProfile("seq(tensor(float))")})
    assert guard.admits({"x": ValueProfile("seq(tensor(float))")})
    assert not guard.admits({"x": ValueProfile("tensor(float)", (1,))})


def test_anonymous_dims_have_no_assumptions() -> None:
    guard = Guard(
        {"x": ValueProfile("tensor(float)", ("?", "?")), "y": ValueProfile("tensor(float)", ("?",))}
    )
    assert guard.holds({"x": np.zeros((2, 3), np.float32), "y": np.zeros(4, np.float32)})
    assert not guard.holds({"x": np.zeros(2, np.float32), "y": np.zeros(4, np.float32)})
    assert guard.admits(
        {"x": ValueProfile("tensor(float)", (2, 3)), "y": ValueProfile("tensor(float)", (4,))}
    )
    assert merged(guard.inputs, guard.inputs) == dict(guard.inputs)
    found = guard_for_all(Profile("m").with_run(guard.inputs), SpecializationKind.DYNAMIC)
    assert found.inputs == guard.inputs


_RATES = """g (float[N, T] x, int64 rate, float[1] f) => (float[N, T] y) {
    limit = Constant<value = int64 {16000}>() fast = Equal(rate, limit)
    y = If<then_branch = a () => (float[N, T] p) { p = Relu(x) },
           else_branch = b () => (float[N, T] q) { q = Neg(x) }>(fast)
}"""


def test_branch_inputs_are_found() -> None:
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


def test_branch_inputs_of_nested_ifs_and_shape_conditions_are_found() -> None:
    nested = _RATES.replace(
        "p = Relu(x)",
        "s = Shape(x) r = Cast<to = 7>(rate) e = Less(s, r) k = ReduceMin<keepdims = 0>(e2)"
        " e2 = Cast<to = 6>(e) c = Cast<to = 9>(k)"
        " p = If<then_branch = c1 () => (float[N, T] u) { u = Exp(x) },"
        " else_branch = d1 () => (float[N, T] v) { v = Abs(x) }>(c)",
    ).replace("Equal(rate, limit)", "Equal(limit, limit)")
    assert branch_inputs(parse(nested)) == {"rate"}


def test_static_variants_pin_branch_inputs_after_one_run() -> None:
    rate, x = ValueProfile("tensor(int64)", (), (16000,)), ValueProfile("tensor(float)", (1, 8))
    once = Profile("m").with_run({"x": x, "rate": rate})
    [variant] = variants_of(once, FusionStrategy.parse("static:1"), pinned={"rate"})
    assert variant.guard.inputs["rate"].ints == (16000,)
    assert guard_for_all(once, SpecializationKind.STATIC, {"rate"}).inputs["rate"].ints == (16000,)
    assert guard_for_all(once, SpecializationKind.DYNAMIC, {"rate"}).inputs["rate"].ints is None
    both = once.with_run({"x": x, "rate": replace(rate, ints=(8000,))})
    assert guard_for_all(both, SpecializationKind.STATIC, {"rate"}).inputs["rate"].ints is None


def test_numbers_of_watched_values_and_zero_gradients_are_kept_and_merged() -> None:
    one = Profile("m", zero_gradients={"dy": True, "dz": True}, watched=3, left_out=1)
    other = Profile("m", zero_gradients={"dy": False}, watched=2, left_out=4)
    both = one.merge(other)
    assert both.zero_gradients == {"dy": False, "dz": True} and (both.watched, both.left_out) == (3, 4)
    assert Profile.from_dict(both.to_dict()) == both
    old = {key: value for key, value in both.to_dict().items() if key not in ("watched", "left_out")}
    assert Profile.from_dict(old).watched == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"graphopt_profile": True}, "unsupported profile version True"),
        ({"graphopt_profile": 1.0}, "unsupported profile version 1.0"),
        ({"model": None}, "model or patterns missing"),
        ({"runs": "x"}, "runs must be a natural number, not 'x'"),
        ({"runs": True}, "runs must be a natural number, not True"),
        ({"watched": -1}, "watched must be a natural number, not -1"),
        ({"left_out": "3"}, "left_out must be a natural number, not '3'"),
        ({"patterns": {}}, "model or patterns missing"),
        ({"patterns": [{"count": 0, "inputs": {}}]}, "no positive count"),
        ({"patterns": [{"count": 1}]}, "not a mapping by name: None"),
        ({"values": []}, "not a mapping by name"),
        ({"values": {"x": {"type": "tensor(complex)"}}}, r"malformed type: 'tensor\(complex\)'"),
        ({"values": {"x": {"type": "float"}}}, "malformed type: 'float'"),
        ({"values": {"x": {"type": "tensor(float)", "shape": [2**63]}}}, "malformed shape"),
        ({"values": {"x": {"type": "seq(tensor(float))", "shape": [1]}}}, "malformed shape"),
        ({"values": {"x": {"type": "tensor(float)", "always": 1}}}, "malformed always"),
        ({"requires_grad": {"x": "yes"}}, "requires_grad must map names to booleans"),
        ({"zero_gradients": {"dy": 1}}, "zero_gradients must map names to booleans"),
    ],
)
def test_malformed_fields(change: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidModel, match=message):
        Profile.from_dict({**Profile("m").to_dict(), **change})
