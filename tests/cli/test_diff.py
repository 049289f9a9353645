"""graphopt diff: two models compared by their graphs."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import onnx.parser
import pytest

from tests.cli.conftest import SMALL, Invoke
from zoo import SAMPLES


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """The file of a model that differs from ``small`` in one operator and one name."""
    path = tmp_path / "other.onnx"
    text = SMALL.replace("Relu(a)", "Abs(renamed)").replace("a = Identity", "renamed = Identity")
    onnx.save(onnx.parser.parse_model(text), path)
    return path


def test_equal_models(invoke: Invoke, small: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.onnx"
    onnx.save(onnx.parser.parse_model(SMALL.replace("a = I", "c = I").replace("(a)", "(c)")), copy)
    outcome = invoke("diff", small, copy)
    assert (outcome.status, outcome.out) == (0, "equal: 3 nodes (1 renamed)\n")


def test_different_models(invoke: Invoke, small: Path, other: Path) -> None:
    outcome = invoke("diff", small, other)
    assert outcome.status == 1
    assert outcome.out.splitlines() == [
        f"{small}: 3 nodes; {other}: 3 nodes; 2 equal (1 renamed), 0 changed, 1 removed, 1 added",
        "",
        "── operators ───────────────────────────────────────────────────────────────────────────────────────",
        "  Abs   0  → 1  +1",
        "  Relu  1  → 0  -1",
        "",
        "── changes ─────────────────────────────────────────────────────────────────────────────────────────",
        "-   %b = Relu(%a)",
        "+   %b = Abs(%renamed)",
    ]


def test_json(invoke: Invoke, small: Path, other: Path) -> None:
    outcome = invoke("diff", small, other, "--json")
    result = json.loads(outcome.out)
    assert outcome.status == 1 and not result["equal"]
    assert result["operators"] == {"Abs": [0, 1], "Add": [1, 1], "Identity": [1, 1], "Relu": [1, 0]}
    assert [(item["kind"], item["name"]) for item in result["changes"]] == [("removed", "b"), ("added", "b")]


def test_files_that_are_no_model_are_refused(invoke: Invoke, small: Path) -> None:
    assert invoke("diff", small, "missing.onnx").status == 2
    assert invoke("diff", small).status == 2


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_samples_and_their_optimized_forms(invoke: Invoke, tmp_path: Path, name: str) -> None:
    path, result = tmp_path / f"{name}.onnx", tmp_path / "result.onnx"
    path.write_bytes(SAMPLES[name].build().SerializeToString())
    assert invoke("optimize", path, "-o", result, "--no-verify").status == 0
    outcome = invoke("diff", path, result)
    assert outcome.status == 1 and max(map(len, outcome.out.splitlines()[1:])) <= 160
    assert invoke("diff", result, result).status == 0
