"""Nodes of a builder have exactly the given numbers, or are not created."""

from __future__ import annotations

import math
from typing import Any

import pytest

from graphopt.api import context_for
from graphopt.context import Options
from graphopt.numerics import Numerics
from graphopt.rewrite.replacement_builder import Builder, UnrepresentableNumber
from tests.model_testing import parse


def _alpha(
    number: Any, kind: str = "float", name: str = "alpha", numerics: Any = Numerics.REASSOCIATES
) -> Any:
    model = parse(f"g ({kind}[N] x) => ({kind}[N] y) {{ y = Elu(x) }}")
    (root,) = model.graph
    builder = Builder(context_for(model, Options(numerics=numerics)), root)
    made = builder.node("Elu", [root.inputs[0]], {name: number})
    return made.producer().attributes[name].value


@pytest.mark.parametrize("number", [0.0, -0.5, 1e38, 2.0**-126])
def test_attributes_have_single_precision(number: float) -> None:
    assert _alpha(number) == pytest.approx(number, rel=2**-24)
    assert _alpha([1.0, number]) == pytest.approx([1.0, number], rel=2**-24)


def test_attributes_have_the_value_of_a_saved_model() -> None:
    assert _alpha(0.1) == 0.10000000149011612


@pytest.mark.parametrize("number", [1e39, -1e60, 1e-39, math.inf, -math.inf, math.nan, [1.0, 1e39]])
def test_numbers_beyond_single_precision_are_refused(number: Any) -> None:
    with pytest.raises(UnrepresentableNumber, match="does not include"):
        _alpha(number)


def test_bounds_may_be_infinite() -> None:
    assert _alpha(-math.inf, name="min") == -math.inf
    with pytest.raises(UnrepresentableNumber):
        _alpha(-1e39, name="min")


def test_inexact_attributes_of_double_nodes_require_fast_math() -> None:
    with pytest.raises(UnrepresentableNumber, match=r"does not represent 0\.1") as raised:
        _alpha(0.1, "double")
    assert raised.value.hint == "--fast-math"
    assert _alpha(0.125, "double") == 0.125
    assert _alpha(0.1, "double", numerics=Numerics.APPROXIMATES) == pytest.approx(0.1)
