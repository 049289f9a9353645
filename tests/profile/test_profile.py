"""Profiles, strategies, guards, and which specializations follow from them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphopt.errors import InvalidModel, UsageError
from graphopt.profile import Behaviour, FusionStrategy, Guard, Profile, Seen, merged, variants_of


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


@pytest.mark.parametrize("text", ["static", "static:-1", "fast:2", "static:2:3"])
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


# Guards -------------------------------------------------------------------------------------

_GUARD = Guard(
    {
        "x": Seen("tensor(float)", (2, "n")),
        "y": Seen("tensor(float)", ("n",)),
        "rate": Seen("tensor(int64)", (), (16000,)),
    },
    absent=("scale",),
)


def _feeds(**changed: np.ndarray) -> dict[str, np.ndarray]:
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
        ({"scale": np.zeros(1)}, "'scale' is fed, and its default is assumed"),
    ],
)
def test_a_guard_tells_what_is_otherwise(changed: dict[str, np.ndarray], why: str) -> None:
    feeds = _feeds(**changed)
    assert not _GUARD.holds(feeds)
    assert _GUARD.explain(feeds) == [why]


def test_a_guard_is_the_same_after_json() -> None:
    assert Guard.from_dict(_GUARD.to_dict()) == _GUARD
