"""The graphs that commands log."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import graphopt
from graphopt import ir
from tests.cli.conftest import Invoke
from tests.instrument.graph_dumps import STATIC, TEXT, X, graphs
from tests.model_testing import parse


@pytest.fixture
def files(tmp_path: Path) -> Path:
    ir.save(parse(TEXT), tmp_path / "m.onnx")
    np.savez(tmp_path / "x.npz", **X)
    graphopt.record_profile(parse(TEXT), [X], watch="all").write(tmp_path / "p.json")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "titles"),
    [
        (
            ["run", "--inputs", "x.npz", "--rounds", "2", "--set", "verify=false"],
            ["Optimized graph (general)", STATIC],
        ),
        (["grad", "--loss", "loss", "-o", "out.onnx"], ["Optimized graph"]),
        (
            ["grad", "--loss", "loss", "--split", "-o", "out", "--no-verify"],
            ["Forward graph", "Backward graph"],
        ),
        (["train-step", "--loss", "loss", "--optimizer", "sgd", "-o", "out.onnx"], ["Optimized graph"]),
        (["partition", "-o", "out.onnx", "--no-verify"], ["Optimized graph"]),
        (
            ["bailout", "--all", "--profile", "p.json", "-o", "out.onnx", "--no-verify"],
            ["Profiled graph", "Optimized graph"],
        ),
        (["optimize", "-o", "out.onnx", "--no-verify"], ["Optimized graph"]),
        (
            ["bench", "--processes", "1", "--rounds", "1", "--warmup", "1", "--threads", "1"],
            ["Optimized graph"],
        ),
    ],
)
def test_commands(
    invoke: Invoke, files: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], titles: list[str]
) -> None:
    monkeypatch.chdir(files)
    command, *rest = arguments
    outcome = invoke(command, "m.onnx", *rest, "--log", "graphs")
    assert outcome.status == 0, outcome.err
    assert [title for title, _ in graphs(outcome.err)] == titles
