"""A short race of writers of two models to one path."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.save_race import candidate, number_of, original, race
from graphopt import ir


@pytest.mark.parametrize("weights", ["copy", "keep"])
@pytest.mark.parametrize("rounds", [10, pytest.param(300, marks=pytest.mark.slow)])
def test_every_result_is_whole(tmp_path: Path, weights: str, rounds: int) -> None:
    found = race(tmp_path, weights, rounds, writers=4, readers=1)
    assert found["faults"] == [] and sum(found["results"].values()) == rounds and found["loads"] > 0


def test_a_mixture_is_noticed(tmp_path: Path) -> None:
    one, two = original(1, tmp_path), original(2, tmp_path)
    target = tmp_path / "out.onnx"
    ir.save(candidate(one, 1), target, weights="keep")
    assert number_of(target) == 1
    two.with_name("in2.data").replace(tmp_path / "in1.data")
    with pytest.raises(ValueError, match="'first' of another one"):
        number_of(target)
