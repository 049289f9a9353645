"""graphopt split-constants and update-weights."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

import graphopt
from graphopt import ir
from graphopt.parameters import parameter_files
from graphopt.parameters.lifting import as_parameters
from tests.cli.conftest import Invoke
from tests.model_testing import parse

TEXT = """m (float[B,2] x) => (float[B,2] y) <float[2,2] v = {1,2,3,4}, float[2,2] w = {5,6,7,8},
    float[2] b = {1,2}> { u = Add(v, w) p = MatMul(x, u) y = Add(p, b) }"""
NEW = {"v": np.full((2, 2), 10, np.float32), "b": np.zeros(2, np.float32)}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    ir.save(parse(TEXT), path)
    return path


@pytest.fixture
def folder(invoke: Invoke, model: Path) -> Path:
    path = model.with_name("model.split")
    ran = invoke("split-constants", model, "-o", path)
    assert ran.status == 0 and "3 weights, and 1 constant computed from weights" in ran.out
    return path


def _result(folder: Path) -> np.ndarray:
    return graphopt.run(folder / "main.onnx", {"x": np.eye(2, dtype=np.float32)})["y"]


def test_folder_is_updated_in_place(invoke: Invoke, folder: Path) -> None:
    weights = folder.with_name("new.safetensors")
    parameter_files.write(weights, as_parameters(NEW))
    ran = invoke("update-weights", folder, weights)
    assert ran.status == 0 and "2 weights" in ran.out and "lacks them: w" in ran.out
    np.testing.assert_array_equal(_result(folder), [[15, 16], [17, 18]])


def test_other_folder_and_weights_of_a_model(invoke: Invoke, folder: Path, model: Path) -> None:
    changed, out = model.with_name("changed.onnx"), model.with_name("out.split")
    ir.save(parse(TEXT.replace("{5,6,7,8}", "{0,0,0,0}")), changed)
    before = _result(folder)
    told = json.loads(invoke("update-weights", folder, changed, "-o", out, "--json").out)
    assert told["placed"] == ["v", "w", "b"] and told["unchanged"] == []
    np.testing.assert_array_equal(_result(out), [[2, 4], [4, 6]])
    np.testing.assert_array_equal(_result(folder), before)


def test_weights_of_a_model_file(invoke: Invoke, model: Path) -> None:
    weights, out = model.with_name("new.npz"), model.with_name("out.onnx")
    np.savez(weights, **NEW)
    assert invoke("update-weights", model, weights).status == 2
    assert invoke("update-weights", model, weights, "-o", out).status == 0
    assert not np.any(ir.load(out).graph.initializers["b"].const_value.numpy())  # type: ignore[union-attr]
    optimized = model.with_name("model.opt.onnx")
    assert invoke("optimize", model).status == 0
    ran = invoke("update-weights", optimized, weights, "-o", model.with_name("refused.onnx"))
    assert ran.status == 2 and "computed from" in ran.err and not model.with_name("refused.onnx").exists()


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"v": np.zeros((3, 3), np.float32)}, "is 2x2, and the tensor 3x3"),
        ({"v": np.zeros((2, 2))}, "is float32, and the tensor float64"),
        ({"q": np.zeros(2, np.float32)}, "no tensor has the name of a weight"),
    ],
)
def test_refused_weights_change_nothing(
    invoke: Invoke, folder: Path, arrays: dict[str, np.ndarray], message: str
) -> None:
    weights = folder.with_name("new.npz")
    np.savez(weights, **arrays)
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    ran = invoke("update-weights", folder, weights)
    assert ran.status == 2 and message in ran.err
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == files


def test_folders_that_are_not_replaced(invoke: Invoke, model: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "notes.txt").write_text("mine")
    ran = invoke("split-constants", model, "-o", other)
    assert (
        ran.status == 2
        and "other is not replaced: not a split model" in ran.err
        and os.listdir(other) == ["notes.txt"]
    )
    assert invoke("split-constants", model, "-o", model).status == 2
    assert invoke("update-weights", other, model).status == 2


def test_the_current_folder_is_not_replaced(
    invoke: Invoke, folder: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    for path in (".", folder):
        ran = invoke("update-weights", path, model)
        assert ran.status == 2 and "it is the current folder" in ran.err
    assert {path.name: path.read_bytes() for path in Path().iterdir()} == files


def test_named_weights_and_framework(invoke: Invoke, model: Path) -> None:
    out, names = model.with_name("s"), model.with_name("names.npz")
    np.savez(names, **{"layer.bias": np.array([1, 2], np.float32), "w": np.zeros((2, 2), np.float32)})
    ran = invoke("split-constants", model, "-o", out, "--weights", "b,w", "--framework", names)
    assert ran.status == 0 and f"not in {names}: w" in ran.out
    np.savez(names, **{"layer.bias": np.array([5, 5], np.float32)})
    refused = invoke("update-weights", out, names)
    assert refused.status == 2 and "'w' is not given, and may derive from weights" in refused.err
    assert invoke("update-weights", out, names, "--partial").status == 0
    np.testing.assert_array_equal(_result(out), [[11, 13], [15, 17]])
    assert invoke("split-constants", model, "-o", out, "--weights", "q").status == 2
