"""Conclusions from artificial ratios."""

from __future__ import annotations

from itertools import combinations

import pytest

from graphopt.timing.ratios import Band, band_of, claims_are_final, compare, is_precise, spread, turn_order

BAND = Band(0.98, 1.02)


def test_each_model_has_each_position_equally_often() -> None:
    names = ["a", "b", "c"]
    orders = [turn_order(names, index) for index in range(6)]
    assert orders[0] == ["a", "b", "c"] and orders[1] == ["c", "b", "a"]
    assert all(sorted(order) == names for order in orders)
    for name in names:
        assert sum(order[0] == name for order in orders) == 2
    for a, b in combinations(names, 2):
        assert sum(order.index(a) < order.index(b) for order in orders) == 3


def test_two_states_that_swap_in_every_iteration() -> None:
    assert [turn_order(["a", "b"], index) for index in range(4)] == [
        ["a", "b"],
        ["b", "a"],
        ["b", "a"],
        ["a", "b"],
    ]


def test_a_band_contains_one_and_is_the_same_for_swapped_twins() -> None:
    ratios = [1.01, 1.03, 1.02, 1.05, 1.04]
    band = band_of(ratios)
    assert 1.0 in band and 1.04 in band and 1.06 not in band and 1 / 1.06 not in band
    swapped = band_of([1 / ratio for ratio in ratios])
    assert (swapped.low, swapped.high) == pytest.approx((band.low, band.high))


def test_a_band_is_never_narrower_than_a_per_cent() -> None:
    band = band_of([1.0001, 0.9999, 1.0, 1.0002, 1.0])
    assert (band.low, band.high) == pytest.approx((1 / 1.01, 1.01))


def test_the_spread_excludes_the_extremes() -> None:
    around = spread([float(value) for value in range(101)])
    assert (around.low, around.high) == (5.0, 95.0)


@pytest.mark.parametrize(
    ("ratios", "conclusion"),
    [
        ([0.90, 0.91, 0.89, 0.90, 0.92], "faster"),
        ([1.10, 1.09, 1.12, 1.08, 1.11], "slower"),
        ([0.99, 1.01, 1.0, 0.985, 1.015], "no difference"),
        ([1.01, 1.012, 1.011, 1.013, 1.011], "no difference"),  # consistent, but inside the band
        ([0.80, 0.95, 1.10, 0.90, 1.20], "no difference"),  # outside, but on both sides of 1
        ([0.90, 0.91, 0.89], "too few processes"),
        ([1.0, 1.001, 0.999], "no difference"),
    ],
)
def test_conclusions_of_comparisons(ratios: list[float], conclusion: str) -> None:
    assert compare(ratios, BAND).conclusion == conclusion


def test_figure_is_the_median() -> None:
    assert compare([1.0, 1.0, 1.0, 1.0, 9.0], BAND).ratio == 1.0


def test_only_clear_differences_end_the_measurement() -> None:
    twin = [1.01, 0.99, 1.0, 1.005, 0.995]
    assert claims_are_final([[2.0, 2.1, 1.9, 2.0, 2.2], [0.5, 0.4, 0.5, 0.6, 0.5]], twin)
    assert not claims_are_final([[2.0, 2.1, 1.9, 2.0, 2.2], [1.02, 1.01, 1.0, 1.02, 1.01]], twin)
    assert not claims_are_final([[2.0, 0.5, 1.9, 2.0, 2.2]], twin)
    assert not claims_are_final([[2.0, 2.1, 1.9]], twin[:3])


def test_rounds_end_at_precise_medians() -> None:
    steady, noisy = [1.0, 1.001, 0.999, 1.0] * 5, [0.8, 1.2, 1.0, 1.1] * 5
    assert is_precise([steady, steady])
    assert not is_precise([steady, noisy])
    assert not is_precise([steady[:5]])
