"""graphopt bailout: lists exit points, splits models, and inserts bailouts into a model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from tests.cli.conftest import Invoke

FOUND = """
<ir_version: 8, opset_import: ["" : 17]>
found (float[N] x, int64 m) => (float[A, B] y, float[C] grown) <float half = {0.5}, bool yes = {1}> {
  large = Greater(x, half)
  at = NonZero(large)
  numbers = Cast<to = 1>(at)
  y = Mul(numbers, half)
  grown = Loop(m, yes, x) <body = b (int64 i, bool k, float[P] v) => (bool on, float[Q] end) {
    big = Greater(v, half)
    where = NonZero(big)
    picked = Cast<to = 1>(where)
    shape = Shape<start = 1>(picked)
    flat = Reshape(picked, shape)
    end = Concat<axis = 0>(flat, x)
    on = Identity(k)
  }>
}
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "found.onnx"
    onnx.save(onnx.parser.parse_model(FOUND), path)
    return path


def test_exit_points_are_listed(invoke: Invoke, model: Path) -> None:
    outcome = invoke("bailout", model, "--list", "--json")
    places = json.loads(outcome.out)["places"]
    assert [place["number"] for place in places] == list(range(len(places)))
    where = {place["value"]: place["where"] for place in places}
    assert where["at"] == "main graph" and "body of" in where["where"]
    assert "NonZero" not in invoke("bailout", model, "--list").err


def test_both_parts_are_written(invoke: Invoke, model: Path, tmp_path: Path) -> None:
    rest, prefix = tmp_path / "rest.onnx", tmp_path / "prefix.onnx"
    outcome = invoke("bailout", model, "--at", "where", "-o", rest, "--prefix", prefix)
    assert outcome.status == 0, outcome.err
    assert "\n  verified  " in outcome.out
    assert onnx.load(rest).graph.input[0].name == "where"
    assert [item.name for item in onnx.load(prefix).graph.input][-1] == "occurrence"
    onnx.checker.check_model(onnx.load(prefix), full_check=True)
    assert invoke("bailout", model, "--at", "at", "-o", rest).status == 0
    onnx.checker.check_model(onnx.load(rest), full_check=True)


def test_all_bailouts_in_one_model(invoke: Invoke, model: Path, tmp_path: Path) -> None:
    profile, result = tmp_path / "profile.json", tmp_path / "result.onnx"
    feeds = tmp_path / "feeds.npz"
    np.savez(feeds, x=np.array([1, -1, 2], np.float32), m=np.array(2))
    assert invoke("profile", model, "--inputs", feeds, "-o", profile).status == 0
    outcome = invoke("bailout", model, "--profile", profile, "--all", "-o", result, "--json")
    assert outcome.status == 0, outcome.err
    told = json.loads(outcome.out)
    assert "at" in [place["value"] for place in told["places"]]
    assert told["verification"]["equal"]
    assert not [node for node in onnx.load(result).graph.node if node.domain]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "one of --list, --at and --all is required"),
        (("--list", "--at", "1"), "--list and --at exclude each other"),
        (("--at", "1"), "--at needs -o"),
        (("--all", "-o", "out.onnx"), "--all needs --profile"),
        (("--list", "-o", "out.onnx"), "--list writes nothing"),
        (("--at", "99", "-o", "out.onnx"), "no exit point 99"),
        (
            ("--at", "att", "-o", "out.onnx"),
            "no value is called 'att'; nearest: at  (graphopt bailout MODEL --list shows the exit points)",
        ),
        (("--at", "half", "-o", "out.onnx"), "is a constant"),
        (("--at", "1", "--most", "2", "-o", "out.onnx"), "--most requires --all"),
        (("--at", "1", "-o", "nowhere/out.onnx"), "there is no folder"),
    ],
)
def test_mistakes_are_one_line(invoke: Invoke, model: Path, arguments: tuple[str, ...], words: str) -> None:
    outcome = invoke("bailout", model, *arguments)
    assert outcome.status == 2
    assert words in outcome.err.splitlines()[0]


def test_model_without_exit_points(invoke: Invoke, tmp_path: Path) -> None:
    path = tmp_path / "scan.onnx"
    text = """<ir_version: 8, opset_import: ["" : 17]>
    scan (float[N] x, float[T, N] rows) => (float[N] y, float[T, N] all) {
      y, all = Scan <num_scan_inputs = 1, body = b (float[N] s, float[N] r) => (float[N] e, float[N] o) {
        e = Add(s, r)
        o = Relu(e)
      }> (x, rows)
    }"""
    onnx.save(onnx.parser.parse_model(text), path)
    outcome = invoke("bailout", path, "--at", "e", "-o", tmp_path / "rest.onnx")
    assert outcome.status == 4
    assert "a Scan can't be left" in outcome.err
    assert "no shape depends on data" in invoke("bailout", path, "--list").out


def test_the_parts_are_not_written_over_each_other(invoke: Invoke, model: Path, tmp_path: Path) -> None:
    (tmp_path / "o").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "o")
    arguments = ("--at", "0", "-o", tmp_path / "o" / "r.onnx", "--prefix", tmp_path / "link" / "r.onnx")
    outcome = invoke("bailout", model, *arguments)
    assert outcome.status == 2 and "name the same file" in outcome.err
    assert not list((tmp_path / "o").iterdir())
