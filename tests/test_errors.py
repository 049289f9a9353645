"""Suggestions for unknown names."""

from __future__ import annotations

from graphopt.errors import causes, nearest_names, unknown


def test_names_that_contain_the_unknown_one_come_first() -> None:
    names = ["/encoder/layer.0/Dense/MatMul", "densa", "/encoder/dense"]
    assert nearest_names("dense", names) == ["/encoder/dense", "/encoder/layer.0/Dense/MatMul", "densa"]


def test_an_unknown_name_is_answered_in_one_short_line() -> None:
    names = [f"pattern-{number}" for number in range(200)]
    message = str(unknown("pattern", "patern-7", names, "graphopt passes lists all"))
    assert message.startswith("no pattern is called 'patern-7'; nearest: pattern-7, ")
    assert message.endswith("(graphopt passes lists all)") and len(message) < 120


def test_names_that_are_not_alike_are_not_suggested() -> None:
    assert nearest_names("nosuch", ["mish", "sequence", "transpose"]) == []
    assert nearest_names("O9", ["O3", "noopt"]) == ["O3"]
    assert str(unknown("pattern", "nosuch", ["mish"], "graphopt passes lists all")) == (
        "no pattern is called 'nosuch'; graphopt passes lists all"
    )


def test_known_names_are_listed_up_to_a_number() -> None:
    names = [f"input_{number}" for number in range(300)]
    listed = "inputs: input_0, input_1, input_2, input_3, input_4, input_5, input_6, input_7 and 292 more"
    assert str(unknown("input", "mask", names)) == f"no input is called 'mask'; {listed}"
    near = "nearest: input_0, input_1, input_2 and 297 more"
    assert str(unknown("input", "input_", names)) == f"no input is called 'input_'; {near}  ({listed})"
    assert str(unknown("input", "x", [])) == "no input is called 'x'; inputs: none"
    assert str(unknown("policy", "x", ["a"], plural="policies")) == "no policy is called 'x'; policies: a"


def test_causes_that_form_a_circle_are_given_once() -> None:
    first, second = ValueError("first"), TypeError("second")
    first.__cause__, second.__cause__ = second, first
    assert list(causes(first)) == [first, second]
