"""Suggestions for unknown names."""

from __future__ import annotations

from graphopt.errors import nearest_names, unknown


def test_names_that_contain_the_unknown_one_come_first() -> None:
    names = ["/encoder/layer.0/Dense/MatMul", "densa", "/encoder/dense"]
    assert nearest_names("dense", names) == ["/encoder/dense", "/encoder/layer.0/Dense/MatMul", "densa"]


def test_an_unknown_name_is_answered_in_one_short_line() -> None:
    names = [f"pattern-{number}" for number in range(200)]
    message = str(unknown("pattern", "patern-7", names, "graphopt passes lists all"))
    assert message.startswith("no pattern is called 'patern-7'; nearest: pattern-7, ")
    assert message.endswith("(graphopt passes lists all)") and len(message) < 120
