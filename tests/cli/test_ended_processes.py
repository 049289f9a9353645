"""The run after a killed ``optimize`` removes its files; an interrupted one reports the files on disk."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.ir.models import run

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model with weights in a data file, in a folder of its own."""
    path = tmp_path / "in" / "m.onnx"
    path.parent.mkdir()
    weights = [
        numpy_helper.from_array(np.full((64, 64), index, np.float32), f"w{index}") for index in range(3)
    ]
    nodes = [
        helper.make_node("Identity", ["x"], ["h0"]),
        *(helper.make_node("MatMul", [f"h{index}", f"w{index}"], [f"h{index + 1}"]) for index in range(3)),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 1, ["N", 64])],
        [helper.make_tensor_value_info("h3", 1, ["N", 64])],
        weights,
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(proto, path, save_as_external_data=True, location="m.onnx.data", size_threshold=0)
    return path


class Command:
    """``optimize`` of ``model`` to ``out.onnx`` and its data in the folder ``out`` of ``root``."""

    def __init__(self, model: Path, root: Path) -> None:
        self.out, self.tmp = root / "out", root / "tmp"
        self.target = self.out / "out.onnx"
        for folder in (self.out, self.tmp):
            folder.mkdir()
        options = ["-o", str(self.target), "--weights", "beside", "--no-verify"]
        self._words = [sys.executable, "-m", "graphopt", "optimize", str(model), *options]
        self._environment = os.environ | {"GRAPHOPT_CACHE": "false", "TMPDIR": str(self.tmp)}

    def start(self) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        return subprocess.Popen(self._words, env=self._environment, stdout=pipe, stderr=pipe, text=True)

    def wait_for_temporaries(self, process: subprocess.Popen[str]) -> None:
        """Wait until the process writes, or has ended."""
        while process.poll() is None and not any(self.out.glob(".*.graphopt-tmp")):
            time.sleep(0.001)

    @property
    def files(self) -> list[str]:
        return sorted(path.name for folder in (self.out, self.tmp) for path in folder.iterdir())


def _kill_and_run(command: Command, delays: list[float], *, waits: bool) -> None:
    for delay in delays:
        process = command.start()
        if waits:
            command.wait_for_temporaries(process)
        time.sleep(delay)
        process.kill()
        process.communicate()
    final = command.start()
    _, errors = final.communicate(timeout=120)
    assert final.returncode == 0, errors
    name, data = command.files  # another name if that of the data is in use
    assert name == "out.onnx" and data.startswith("out.onnx.") and data.endswith("data")
    run(command.target, x=np.ones((2, 64), np.float32))


def test_the_next_run_removes_the_files_of_killed_ones(model: Path, tmp_path: Path) -> None:
    _kill_and_run(Command(model, tmp_path), [0.0, 0.002, 0.005, 0.01], waits=True)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(25))
def test_kills_at_random_times(model: Path, tmp_path: Path, seed: int) -> None:
    generator = np.random.default_rng(seed)
    is_late = bool(seed % 2)
    delays = generator.uniform(0, 0.02 if is_late else 1.5, 2).tolist()
    _kill_and_run(Command(model, tmp_path), delays, waits=is_late)


def _interrupt(command: Command, delay: float, *, waits: bool) -> None:
    process = command.start()
    if waits:
        command.wait_for_temporaries(process)
    time.sleep(delay)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert "Traceback" not in errors
    if process.returncode == 0:
        assert command.files == ["out.onnx", "out.onnx.data"]
    else:
        assert process.returncode == 130
        written = [str(command.target)] if command.target.exists() else []
        assert errors.splitlines()[-1] == (
            f"graphopt: interrupted; wrote {written[0]}"
            if written
            else "graphopt: interrupted; nothing was written"
        )
        assert command.files == (["out.onnx", "out.onnx.data"] if written else [])


@pytest.mark.parametrize("delay", [0.0, 0.003, 0.01, 0.03, 0.1])
def test_an_interrupt_reports_the_files_on_disk(model: Path, tmp_path: Path, delay: float) -> None:
    _interrupt(Command(model, tmp_path), delay, waits=True)


@pytest.mark.slow
@pytest.mark.parametrize("milliseconds", range(0, 100, 2))
def test_interrupts_around_the_end(model: Path, tmp_path: Path, milliseconds: int) -> None:
    _interrupt(Command(model, tmp_path), milliseconds / 1000, waits=True)
