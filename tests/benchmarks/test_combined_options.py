"""The comparison of ``benchmarks.combined_options``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.combined_options import ALL, COMBINATIONS, figures, is_slower, verdict
from benchmarks.inputs import entry_of
from benchmarks.measured_models import Case
from benchmarks.never_slower import TWIN
from graphopt import api
from tests.benchmarks.test_commands import run
from tests.model_testing import parse

MODEL = "g (float[B, 4] x) => (float[B, 4] y) { a = Exp(x) y = OP(a) }"


def _saved(path: Path, op: str) -> Path:
    api.save(parse(MODEL.replace("OP", op)), path)
    return path


def test_wrong_results_are_found(tmp_path: Path) -> None:
    path = _saved(tmp_path / "a.onnx", "Neg")
    case = Case(path, entry_of(path))
    assert verdict(case, _saved(tmp_path / "same.onnx", "Neg")) == "ok"
    assert verdict(case, _saved(tmp_path / "wrong.onnx", "Abs")).startswith("an output differs by ")


@pytest.mark.parametrize(("all_three", "slower"), [(0.8, False), (0.81, False), (0.9, True)])
def test_all_together_must_not_be_slower_than_one(all_three: float, slower: bool) -> None:
    ratios = {name: 0.8 for name in COMBINATIONS} | {ALL: all_three}
    found = figures([{**ratios, TWIN: 0.99}, {**ratios, TWIN: 1.01}])
    assert found["ratios"][ALL] == all_three and found["band"] == [0.99, 1.01]
    assert is_slower(found) == slower


@pytest.mark.slow
def test_all_combinations_of_a_sample_are_right(tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    words = ("--only", "functions", "--processes", "1", "--seconds", "0.1", "--budget", "10s")
    done = run("-m", "benchmarks.combined_options", *words, "--json", str(results))
    (model,) = json.loads(results.read_text())["models"]
    assert model["verdicts"] == dict.fromkeys(COMBINATIONS, "ok"), done.stderr
