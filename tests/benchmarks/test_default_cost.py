"""The benchmark of defaults with verification."""

from __future__ import annotations

import json

from benchmarks.default_cost import resnet50
from tests.benchmarks.test_commands import run


def test_the_random_resnet_has_the_size_of_the_original() -> None:
    weights = resnet50().graph.initializer
    assert 25.5e6 < sum(len(one.raw_data) // 4 for one in weights) < 25.7e6


def test_the_cost_of_the_default_includes_verification(tmp_path) -> None:
    results = tmp_path / "results.json"
    done = run(
        *("-m", "benchmarks.default_cost", "--only", "functions", "--rounds", "1", "--counts", "1"),
        *("--json", str(results)),
    )
    assert done.returncode == 0, done.stderr
    (model,) = json.loads(results.read_text())["models"]
    assert model["cpu"]["graphopt"] > 0 and model["peak"]["graphopt"] > 20e6
    idle, loaded = model["comparisons"]
    assert idle == loaded > 0
