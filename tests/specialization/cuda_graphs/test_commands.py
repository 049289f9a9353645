"""The parts of ``run --cuda-graph`` and ``bench --cuda-graph`` that need no GPU."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import pytest

from graphopt import config, ir
from graphopt.cli.commands.bench import _without_obstructed_graphs
from graphopt.cli.invocation import Run
from graphopt.cli.output.console import Console
from graphopt.diagnostics.record import Record
from graphopt.ort import devices
from graphopt.ort.devices import CPU, Device
from graphopt.specialization.cuda_graphs.captured_graphs import GraphOptions
from graphopt.specialization.cuda_graphs.graph_switch import GraphSwitch
from graphopt.specialization.cuda_graphs.replayed_run import replayed_run
from graphopt.timing.bench import Contestant
from tests.cli.conftest import Invoke, invoke  # noqa: F401
from tests.model_testing import parse

_PLAIN = "g (float[N,4] x) => (float[N,4] y) { a = Relu(x)\n y = Exp(a) }"
_BRANCH = """g (bool c, float[2] x) => (float[2] y) {
  [choice] y = If (c) <then_branch = a () => (float[2] p) { p = Exp(x) }, else_branch = b () => (float[2] q) { q = Relu(x) }>
}"""


def test_a_replayed_run(monkeypatch: pytest.MonkeyPatch) -> None:
    able = dataclasses.replace(CPU.capabilities, captures_graphs=True)
    monkeypatch.setitem(devices._CAPABILITIES, "cpu", able)
    record = Record(set())
    x = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)
    found = replayed_run(parse(_PLAIN), {"x": x}, GraphSwitch(GraphOptions(skipped=0), record), device=CPU)
    assert found is not None
    np.testing.assert_allclose(found.outputs["y"], np.exp(np.maximum(x, 0)), rtol=1e-6)
    assert record.counters == {"cuda-graph captures": 1, "cuda-graph replays": 1}
    feeds = {"c": np.array(True), "x": np.ones(2, np.float32)}
    assert (
        replayed_run(parse(_BRANCH), feeds, GraphSwitch(GraphOptions(skipped=0), record), device=CPU) is None
    )
    assert record.hints[0].message == "CUDA graphs are off: If 'choice' is control flow"


def test_bench_runs_all_models_alike() -> None:
    run = Run(config.defaults(), Console())
    options = {"use_tf32": "1", "enable_cuda_graph": "1"}
    contestants = [Contestant.of("original", Path("m.onnx"), parse(_BRANCH)), Contestant("failed", Path("f"))]
    found = _without_obstructed_graphs(run, contestants, Device("cuda"), options)
    assert found == {"use_tf32": "1"}
    assert [hint.message for hint in run.record.hints] == [
        "CUDA graphs are off: original: If 'choice' is control flow"
    ]
    assert run.record.counters == {"cuda-graph skips": 1}
    assert _without_obstructed_graphs(run, contestants, Device("cuda"), found) is found


def test_bench_checks_sizes(invoke: Invoke, tmp_path: Path) -> None:  # noqa: F811
    """Another model whose declared size differs fails, and the first one is measured."""
    for name, size in (("a", "N"), ("b", "5")):
        text = f"g (float[{size},4] x) => (float[{size},4] y) {{ y = Relu(x) }}"
        onnx.save(ir.to_proto(parse(text)), tmp_path / f"{name}.onnx")
    words = ("bench", tmp_path / "a.onnx", tmp_path / "b.onnx", "--input-shape", "x:3x4")
    outcome = invoke(*words, "--processes", "1", "--rounds", "1", "--check-sizes")
    assert outcome.status == 6
    assert "the input 'x' has size 3 on axis 0, the model declares 5" in outcome.out
