"""Pairs of an input and the output that is written over it."""

from __future__ import annotations

from typing import Any

import pytest

from graphopt.errors import UsageError
from graphopt.inputs.shared_buffer_pairs import resolve_pairs

INPUTS, OUTPUTS = ["past.0", "past.1", "x"], ["present.0", "present.1", "y"]


def test_patterns_name_several_pairs_and_repetitions_count_once() -> None:
    pairs = [("past.*", "present.*"), ("past.0", "present.0"), ("x", "y")]
    found = {"present.0": "past.0", "present.1": "past.1", "y": "x"}
    assert resolve_pairs(pairs, INPUTS, OUTPUTS) == found


@pytest.mark.parametrize(
    ("pairs", "reason"),
    [
        ([("past.0", "y"), ("past.1", "y")], "output 'y' can't share its buffer twice"),
        ([("x", "present.0"), ("x", "present.1")], "input 'x' can't share its buffer twice"),
        ([("past.2", "y")], "no input 'past.2'|unknown input|past.2"),
        ([("x", "z")], "'z'"),
        ([("none*", "y*")], "no input matches 'none\\*'"),
        ([("past.*", "present.0")], "as many \\*"),
    ],
)
def test_contradicting_and_unknown_pairs_are_refused(pairs: list[tuple[str, str]], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        resolve_pairs(pairs, INPUTS, OUTPUTS)


@pytest.mark.parametrize(
    "pairs", ["past=present", {"present.0": "past.0"}, ["past"], [("a", "b", "c")], [("x", 1)]]
)
def test_other_forms_than_pairs_are_refused(pairs: Any) -> None:
    with pytest.raises(UsageError, match=r"not a (pair|list of pairs)"):
        resolve_pairs(pairs, INPUTS, OUTPUTS)
