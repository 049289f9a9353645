"""Under limits on memory (``ulimit``), ``optimize`` writes a result, or exits with status 5 and one sentence."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import helper, numpy_helper

from tests.cli.conftest import SMALL

resource = pytest.importorskip("resource")

_LIMITS = {"d": resource.RLIMIT_DATA, "v": resource.RLIMIT_AS}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with 16 MB of weights, which is written for this module."""
    path = tmp_path_factory.mktemp("models") / "in.onnx"
    weight = numpy_helper.from_array(np.ones((2048, 2048), np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", 1, ["N", 2048])],
        [helper.make_tensor_value_info("y", 1, ["N", 2048])],
        [weight],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def _optimize(model: Path, folder: Path, kind: str, megabytes: int) -> subprocess.CompletedProcess[str]:
    """Optimize ``model`` under a limit, with temporary files in ``folder / "tmp"``; hangs fail the test."""
    (folder / "tmp").mkdir()
    return _run(["optimize", str(model), "-o", "out.onnx"], folder, kind, megabytes)


def _run(
    arguments: Sequence[str], folder: Path, kind: str, megabytes: float
) -> subprocess.CompletedProcess[str]:
    """Run a command in ``folder`` under a limit; hangs fail the test."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(_LIMITS[kind], (int(megabytes * (1 << 20)),) * 2)

    words = [sys.executable, "-m", "graphopt", *arguments]
    environment = {"GRAPHOPT_CACHE": "false", "TMPDIR": str(folder / "tmp"), "PYTHONPATH": ":".join(sys.path)}
    return subprocess.run(
        words,
        check=False,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        preexec_fn=limit,
    )


def _check(done: subprocess.CompletedProcess[str], folder: Path) -> None:
    lines = [line for line in done.stderr.splitlines() if line.startswith("graphopt: ")]
    lines = [line for line in lines if not line.startswith("graphopt: warning: ")]
    assert done.returncode in (0, 5) and "Traceback" not in done.stderr, done.stderr
    assert len(lines) == int(done.returncode == 5)
    names = {path.name for path in folder.iterdir()}
    assert names == ({"tmp", "out.onnx"} if done.returncode == 0 else {"tmp"})
    assert not any((folder / "tmp").iterdir())


@pytest.mark.parametrize(
    ("kind", "megabytes"), [("d", 20), ("d", 100), ("d", 124), ("d", 150), ("v", 100), ("v", 220)]
)
def test_status_and_files(model: Path, tmp_path: Path, kind: str, megabytes: int) -> None:
    _check(_optimize(model, tmp_path, kind, megabytes), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(_LIMITS))
@pytest.mark.parametrize("megabytes", range(40, 340, 7))
def test_sweep(model: Path, tmp_path: Path, kind: str, megabytes: int) -> None:
    _check(_optimize(model, tmp_path, kind, megabytes), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kilobytes", range(196_700, 215_000, 300))
def test_lack_of_memory_is_no_verdict(tmp_path: Path, kilobytes: int) -> None:
    """The address space suffices for onnxruntime, and for some of its sessions and threads."""
    (tmp_path / "tmp").mkdir()
    onnx.save(onnx.parser.parse_model(SMALL), tmp_path / "tmp" / "in.onnx")
    done = _run(["optimize", "tmp/in.onnx", "-o", "out.onnx"], tmp_path, "v", kilobytes / 1024)
    assert done.returncode in (0, 5), done.stderr
    assert "not the same" not in done.stderr and "no inputs" not in done.stderr
    assert "skipped for time" not in done.stdout and "Exception ignored" not in done.stderr


@pytest.mark.parametrize("kind", list(_LIMITS))
def test_limit_below_the_libraries_is_reported_before_they_are_imported(
    model: Path, tmp_path: Path, kind: str
) -> None:
    done = _optimize(model, tmp_path, kind, 60 if kind == "d" else 150)
    assert done.returncode == 5
    first, hint = done.stderr.splitlines()
    assert first.startswith("graphopt: graphopt needs at least ") and f"and ulimit -{kind} allows" in first
    assert hint.startswith("hint: raise this limit")


@pytest.mark.parametrize("command", ["completion bash", "passes", "pipelines", "--version"])
def test_commands_without_onnxruntime_need_less_memory(command: str, tmp_path: Path) -> None:
    enough = _run(command.split(), tmp_path, "v", 150)
    assert (enough.returncode, enough.stderr) == (0, "") and enough.stdout


@pytest.mark.parametrize("kind", list(_LIMITS))
def test_commands_that_only_list_passes_are_refused_below_their_libraries(kind: str, tmp_path: Path) -> None:
    done = _run(["passes"], tmp_path, kind, 60 if kind == "d" else 120)
    assert done.returncode == 5 and done.stderr.startswith("graphopt: graphopt needs at least ")
