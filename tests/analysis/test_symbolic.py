"""The dim algebra: canonical forms, rounding, bounds, and agreement with Python's integers."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphopt.analysis.symbolic import (
    Dim,
    SymDim,
    bounds,
    ceildiv,
    declared_name,
    dim_max,
    dim_min,
    divide_exactly,
    equal,
    evaluate,
    floordiv,
    fresh_symbol,
    known_nonzero,
    or_else,
    product,
    substitute,
    symbol,
    symbols,
    zero_with,
)

B, S, H = symbol("B"), symbol("S"), symbol("H")
K = symbol("K", 1)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (B * S, S * B),
        ((B + 1) * (S + 2), B * S + 2 * B + S + 2),
        ((4 * B * S) // 4, B * S),
        ((B * S * K) // (K * S) if known_nonzero(S) else floordiv(B * K, K), B),
        ((H - 1) // 2 + 1, (H + 1) // 2),
        (ceildiv(H, 2), -(-H // 2)),
        (((H + 1) // 2 + 1) // 2, (H + 3) // 4),
        ((6 * H + 4) // 4, (3 * H + 2) // 2),
        (H // 2 * 2 + H % 2, H),
        ((7 - H % 7) % 7, -H % 7),
        (dim_max(B - 1, 0), dim_max(B, 1) - 1),
        (dim_max(dim_max(B - 1, 0) - 1, 0), dim_max(B - 2, 0)),
        (dim_min(B, B + 1), B),
        (dim_max(2 * B, 2 * S), 2 * dim_max(S, B)),
        (dim_max(B + S, H + S), S + dim_max(B, H)),
        (B - B, 0),
        (0 * B, 0),
        (product([2, B, 3, S]), 6 * B * S),
        (or_else(K, 7), K),
        (or_else(0, B), B),
        (or_else(B, 0), B),
        (or_else(B, or_else(B, 7)), or_else(B, 7)),
    ],
)
def test_equal_expressions_have_one_form(left: Dim, right: Dim) -> None:
    assert left == right
    assert hash(left) == hash(right)
    assert str(left) == str(right)


def test_results_without_symbols_are_ints() -> None:
    assert type(B - B + 3) is int
    assert type((B + 5) - B) is int
    assert type(dim_max(B, B)) is SymDim


def test_a_size_of_zero_keeps_a_quotient_symbolic() -> None:
    assert (B * S) // S != B
    assert evaluate((B * S) // S, {"B": 3, "S": 2}) == 3
    assert evaluate((B * S) // S, {"B": 3, "S": 0}) is None
    assert (B * K) // K == B


def test_dividing_by_the_number_zero_raises() -> None:
    with pytest.raises(ZeroDivisionError):
        B // 0
    with pytest.raises(ZeroDivisionError):
        B % 0


def test_exact_division_by_a_sum() -> None:
    assert divide_exactly((B + 1) * (S + 2) * (H + S), (B + 1) * (H + S)) == S + 2
    assert divide_exactly(12 * B * (S + H), 4 * (S + H)) == 3 * B
    assert divide_exactly(B * S + 1, S) is None
    assert divide_exactly(7, 2) is None


@pytest.mark.parametrize(
    ("dim", "expected"),
    [
        (B, (0, math.inf)),
        (3 - B, (-math.inf, 3)),
        (dim_min(B, 5), (0, 5)),
        (B - dim_min(B, 5), (0, math.inf)),
        (dim_max(0, dim_min(B, 5) - 2), (0, 3)),
        (H % 7, (0, 6)),
        (H - 2 * (H // 2), (0, 1)),
        (or_else(B, 768), (1, math.inf)),
        (symbol("n", -3, 4) * symbol("m", 2, 5), (-15, 20)),
    ],
)
def test_bounds(dim: Dim, expected: tuple[float, float]) -> None:
    assert bounds(dim) == expected


def test_bounds_under_other_ranges() -> None:
    assert bounds(2 * B + 1, {"B": (1, 8)}) == (3, 17)
    assert bounds(dim_min(B, 5) * S, {"B": (2, 3), "S": (4, 4)}) == (8, 12)


def test_proofs() -> None:
    assert equal(B + S, S + B)
    assert equal(dim_max(B, 0), B)
    assert not equal(B, S)
    assert not equal(3, 4)
    assert known_nonzero(B + 1)
    assert not known_nonzero(B - 1)
    assert zero_with((H + 7) // 8, 2 * ((H + 15) // 16))
    assert zero_with(B * S, 3 * S)
    assert not zero_with(B, B * S)


def test_names_do_not_collide_with_expressions() -> None:
    odd = symbol("a + b")
    assert odd != symbol("a") + symbol("b")
    assert str(odd // 2) != str((symbol("a") + symbol("b")) // 2)
    assert symbol("4") * 1 != 4
    assert list(symbols(odd * B + symbol('say "x"'))) == ["a + b", "B", 'say "x"']


def test_growth_is_bounded() -> None:
    dim: Dim = B
    for step in range(300):
        dim = dim_max((dim + 1) // 2 * S, H - dim + step) + dim_min(dim, symbol(f"n{step}"))
    assert len(str(dim)) < 4000


def test_huge_expressions_equal_themselves() -> None:
    def large() -> Dim:
        return product([symbol(f"n{i}") + i for i in range(6)])

    assert large() == large()
    assert large() != large() + 1
    assert bounds(large())[0] == 0


def test_extremum_of_many_symbols_is_a_new_symbol() -> None:
    many = [symbol(f"n{i}") for i in range(256)]
    assert dim_max(*many) == dim_max(*many)
    assert dim_max(*many) != dim_min(*many)
    assert bounds(dim_min(*many, 7)) == (0, 7)


def test_fresh_symbols_are_distinct() -> None:
    assert fresh_symbol("x", 1) != fresh_symbol("x", 2)
    assert (fresh_symbol("x", 4) // 2 + B).birth == 4  # type: ignore[union-attr]
    assert B.birth == 0


def test_symbols_are_substituted_by_name() -> None:
    assert substitute(B * S // 3 + 1, {"B": 3}) == S + 1
    assert substitute(dim_min(B, 5) + or_else(S, 2), {"B": 9, "S": 0}) == 7


# agreement with Python's integers

_NAMES = ("a", "b", "c")
_Expression = tuple[Dim, Callable[[dict[str, int]], int]]


def _leaf(name: str) -> _Expression:
    return symbol(name), lambda values: values[name]


def _number(value: int) -> _Expression:
    return value, lambda values: value


def _joined(operation: str, left: _Expression, right: _Expression) -> _Expression:
    functions: dict[str, tuple[Callable[[Dim, Dim], Dim], Callable[[int, int], int]]] = {
        "+": (lambda x, y: x + y, lambda x, y: x + y),
        "-": (lambda x, y: x - y, lambda x, y: x - y),
        "*": (lambda x, y: x * y, lambda x, y: x * y),
        "max": (dim_max, max),
        "min": (dim_min, min),
    }
    symbolic, plain = functions[operation]
    return symbolic(left[0], right[0]), lambda values: plain(left[1](values), right[1](values))


def _divided(operation: str, left: _Expression, by: int) -> _Expression:
    functions: dict[str, tuple[Callable[[Dim, int], Dim], Callable[[int, int], int]]] = {
        "//": (floordiv, lambda x, y: x // y),
        "%": (lambda x, y: x % y, lambda x, y: x % y),
        "ceil": (ceildiv, lambda x, y: -(-x // y)),
    }
    symbolic, plain = functions[operation]
    return symbolic(left[0], by), lambda values: plain(left[1](values), by)


_leaves = st.one_of(st.sampled_from(_NAMES).map(_leaf), st.integers(-6, 6).map(_number))
_expressions = st.recursive(
    _leaves,
    lambda inner: st.one_of(
        st.builds(_joined, st.sampled_from(["+", "-", "*", "max", "min"]), inner, inner),
        st.builds(_divided, st.sampled_from(["//", "%", "ceil"]), inner, st.integers(1, 5)),
    ),
    max_leaves=8,
)
_values = st.fixed_dictionaries({name: st.integers(0, 9) for name in _NAMES})


@given(_expressions, st.lists(_values, min_size=1, max_size=4))
def test_symbolic_and_plain_arithmetic_agree(expression: _Expression, runs: list[dict[str, int]]) -> None:
    dim, plain = expression
    lo, hi = bounds(dim)
    for values in runs:
        expected = plain(values)
        assert lo <= expected <= hi
        computed = evaluate(dim, values)
        opaque = any(name not in values for name in symbols(dim))
        assert computed == expected or (computed is None and opaque)


@given(_expressions, _expressions, _values)
def test_proved_equalities_are_correct(left: _Expression, right: _Expression, values: dict[str, int]) -> None:
    if equal(left[0], right[0]):
        assert left[1](values) == right[1](values)
    if zero_with(left[0], right[0]) and right[1](values) == 0:
        assert left[1](values) == 0
    quotient = divide_exactly(left[0], right[0])
    if quotient is not None and right[1](values) != 0:
        computed = evaluate(quotient, values)
        assert computed is None or computed * right[1](values) == left[1](values)


def test_only_dims_named_by_the_model_have_declared_names() -> None:
    named = symbol("x@0")
    assert declared_name(named) == "x@0" and str(named) == "x@0"
    assert declared_name(named + 1) is None and declared_name(3) is None
    assert declared_name(fresh_symbol("x", 1)) is None
