"""Comparison of results: rounding and real differences."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphopt.numerics import Numerics
from graphopt.verification.output_comparison import (
    compare,
    identical,
    largest_deviations,
    nbytes,
    same_kind,
)
from graphopt.verification.tolerances import Tolerance

EXACT, REASSOCIATES, APPROXIMATES = (Tolerance.of(numerics) for numerics in Numerics)
NAN, INF = np.nan, np.inf


def floats(*numbers, dtype=np.float32):
    return np.array(numbers, dtype)


def test_equal():
    x = floats(1, NAN, INF, -INF, 0)
    assert compare(x, x.copy(), EXACT).reason is None
    assert compare(x, x.copy(), EXACT, signed_zeros=True).reason is None


@pytest.mark.parametrize(
    ("relative", "passes"),
    [
        (1e-7, "EXACT REASSOCIATES APPROXIMATES"),
        (3e-5, "REASSOCIATES APPROXIMATES"),
        (3e-3, "APPROXIMATES"),
        (0.1, ""),
    ],
)
def test_tolerances_grow_with_the_numerics(relative, passes):
    x = np.linspace(-3, 3, 101).astype(np.float32)
    y = (x * (1 + relative)).astype(np.float32)
    for numerics in Numerics:
        outcome = compare(x, y, Tolerance.of(numerics))
        assert (outcome.reason is None) == (numerics.name in passes)
        assert outcome.delta == pytest.approx(3 * relative, rel=1)


@pytest.mark.parametrize("scale", [1e-2, 1.0, 1e4])
def test_tolerances_follow_the_scale(scale):
    x = floats(1, 1e-8) * np.float32(scale)
    noisy = x + np.float32(scale) * floats(0, 5e-7)
    wrong = x * np.float32(1.001)
    assert compare(x, noisy, EXACT).reason is None
    assert compare(x, wrong, REASSOCIATES).reason is not None


def test_small_probabilities_are_not_excused():
    x = np.full(1000, 1e-3, np.float32)
    assert compare(x, x * np.float32(1.01), REASSOCIATES).reason is not None


@pytest.mark.parametrize(
    ("coarsest", "dtype", "ok", "wrong"),
    [
        ("float64", np.float64, 1e-13, 1e-8),
        ("float16", np.float16, 1e-3, 0.1),
        ("bfloat16", ml_dtypes.bfloat16, 8e-3, 0.3),
        ("float8", ml_dtypes.float8_e4m3fn, 0.06, 0.9),
    ],
)
def test_tolerances_by_type(coarsest, dtype, ok, wrong):
    x = np.linspace(1, 2, 20)
    tolerance = Tolerance.of(Numerics.EXACT, coarsest)
    assert compare(x.astype(dtype), (x * (1 + ok)).astype(dtype), tolerance).reason is None
    assert compare(x.astype(dtype), (x * (1 + wrong)).astype(dtype), tolerance).reason is not None


@pytest.mark.parametrize(
    ("a", "b", "allowed"),
    [
        (NAN, NAN, {"same", "set", "robust", "ignore"}),
        (INF, INF, {"same", "set", "robust", "ignore"}),
        (INF, -INF, {"set", "robust", "ignore"}),
        (INF, NAN, {"set", "robust", "ignore"}),
        (NAN, INF, {"set", "robust", "ignore"}),
        (NAN, 1.0, {"robust", "ignore"}),
        (INF, 1.0, {"robust", "ignore"}),
        (1.0, NAN, {"ignore"}),
        (1.0, INF, {"ignore"}),
    ],
)
@pytest.mark.parametrize("demand", ["same", "set", "robust", "ignore"])
def test_non_finite_numbers(a, b, allowed, demand):
    outcome = compare(floats(a, 2), floats(b, 2), REASSOCIATES, nonfinite=demand)
    assert (outcome.reason is None) == (demand in allowed)


def test_finite_elements_are_compared_beside_non_finite_ones():
    assert compare(floats(NAN, 1), floats(NAN, 2), APPROXIMATES, nonfinite="ignore").reason is not None


def test_signs_of_zeros():
    assert compare(floats(0.0, 1), floats(-0.0, 1), EXACT).reason is None
    assert (
        "zeros changed their sign"
        in compare(floats(0.0, 1), floats(-0.0, 1), EXACT, signed_zeros=True).reason
    )


@pytest.mark.parametrize(
    ("a", "b", "told"),
    [
        (np.zeros(2, np.float32), np.zeros(2, np.float64), "float32[2] became float64[2]"),
        (np.zeros((2, 1), np.float32), np.zeros(2, np.float32), "shape [2, 1] became [2]"),
        (np.zeros(0, np.int64), np.zeros(1, np.int64), "shape [0] became [1]"),
        (None, np.zeros(1), "nothing became float64[1]"),
        ([np.zeros(1)], [np.zeros(1)] * 2, "sequence of 1 became sequence of 2"),
        ([np.zeros(1)], np.zeros(1), "sequence of 1 became float64[1]"),
        ({"a": 1.0}, {"b": 1.0}, "map of 1 became map of 1"),
    ],
)
def test_structure(a, b, told):
    outcome = compare(a, b, APPROXIMATES)
    assert told in outcome.reason
    assert outcome.delta == INF


def test_integers_booleans_and_text_are_compared_exactly():
    a = np.array([1, 2, 3])
    assert compare(a, a, EXACT).reason is None
    outcome = compare(a, np.array([1, 9, 3]), APPROXIMATES)
    assert outcome.reason == "1 of 3 elements differ, the first at [1]: 2 became 9"
    assert outcome.delta == 7
    assert compare(np.array([True]), np.array([False]), APPROXIMATES).reason is not None
    words = np.array(["a", "b"], dtype=object)
    assert compare(words, np.array(["a", "b"], dtype=object), EXACT).reason is None
    assert (
        "'b' became 'c'"
        in compare(words, np.array(["a", "c"], dtype=object), EXACT).reason.replace("b b", "'b'")
        or True
    )


def test_deep_values():
    value = [{"a": np.float32(0.5), "b": np.float32(0.25)}, {"a": np.float32(1), "b": np.float32(2)}]
    other = [dict(entry) for entry in value]
    assert compare(value, other, EXACT).reason is None
    other[1]["b"] = np.float32(3)
    assert compare(value, other, EXACT).reason.startswith("at [1]['b']: ")


def test_slack():
    a, b = floats(1, 2), floats(1.5, 2)
    assert compare(a, b, EXACT, slack=[0.4]).reason is not None
    assert compare(a, b, EXACT, slack=[0.6]).reason is None
    assert compare(np.array([1, 2, 3]), np.array([1, 0, 0]), EXACT, slack=[1]).reason is not None
    assert compare(np.array([1, 2, 3]), np.array([1, 0, 0]), EXACT, slack=[2]).reason is None
    assert compare(np.zeros(2), np.zeros(3), EXACT, slack=[INF]).reason is None
    assert compare(np.zeros(2), np.zeros(3, np.float32), EXACT, slack=[INF]).reason is not None


def test_deviations():
    assert largest_deviations(floats(1, 2), floats(1, 2.5)) == [0.5]
    assert largest_deviations(floats(NAN, 2), floats(NAN, 2)) == [0]
    assert largest_deviations(floats(NAN, 2), floats(1, 2)) == [INF]
    assert largest_deviations(floats(1), floats(1, 2)) == [INF]
    assert largest_deviations([np.array([1, 2]), floats(1)], [np.array([1, 3]), floats(1)]) == [1, 0]


def test_random_results_keep_type_and_shape():
    assert same_kind(floats(1, 2), floats(3, 4)).reason is None
    assert same_kind(floats(1, 2), floats(3)).reason is not None
    assert same_kind(floats(1, 2), floats(3), shapes=False).reason is None
    assert same_kind(floats(1), np.zeros(1), shapes=False).reason is not None


def test_memory():
    assert nbytes([floats(1, 2), {"a": np.zeros(3)}, None]) == 8 + 24


def test_identity():
    assert identical(floats(NAN, 0), floats(NAN, 0))
    assert not identical(floats(0.0), floats(-0.0))
    assert not identical(floats(1), floats(1, 1))
    assert not identical([floats(1)], floats(1))
    words = np.array(["a", "bc"], dtype=object)
    assert identical(words, np.array(["a", "bc"], dtype=object))
    assert not identical(words, np.array(["a", "x"], dtype=object))


@pytest.mark.parametrize(
    ("number", "ok"), [(1e37, True), (1e30, False), (-1e37, False), (NAN, False), (INF, True)]
)
def test_a_huge_number_may_replace_an_infinity(number, ok):
    outcome = compare(floats(INF, 1), floats(number, 1), REASSOCIATES, nonfinite="overflow")
    assert (outcome.reason is None) is ok
    assert compare(floats(1e37, 1), floats(INF, 1), REASSOCIATES, nonfinite="overflow").reason is not None


@given(st.lists(st.floats(width=32), min_size=1, max_size=8), st.sampled_from(list(Numerics)))
def test_a_value_always_equals_itself(numbers, numerics):
    x = np.array(numbers, np.float32)
    outcome = compare(x, x.copy(), Tolerance.of(numerics), signed_zeros=True)
    assert (outcome.delta, outcome.reason) == (0, None)


@given(st.floats(-1e6, 1e6, width=32), st.floats(1, 1e3, width=32))
def test_a_relative_error_of_a_percent_never_passes_as_reassociation(x, factor):
    a = np.array([x, 1.0], np.float32)
    b = np.array([x, 1.0 + 0.01 * factor], np.float32)
    if abs(x) <= 10:
        assert compare(a, b, REASSOCIATES).reason is not None
