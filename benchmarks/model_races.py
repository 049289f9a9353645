"""Race models in onnxruntime and OpenVINO alternately.

OpenVINO runs in a process beside the measuring one, because it may need another interpreter; both take turns.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.timed_turns import Timer, time_turns, timer
from graphopt.ort import session
from graphopt.ort.session_options import SessionChoice
from graphopt.timing import ratios

OPENVINO = "OpenVINO"
#: Seconds of the runs of one turn, and bounds on their number.
_TURN, _RUNS = 0.02, (1, 50)


class OpenVino:
    """A process that runs a model in OpenVINO.

    Attributes:
        failure: the reason why OpenVINO does not run the model.
    """

    def __init__(self, python: str, model: Path, feeds: Path, threads: int) -> None:
        worker = str(Path(__file__).with_name("openvino_worker.py"))
        self._process = subprocess.Popen(
            [python, worker, str(model), str(feeds), str(threads)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        self.failure: str | None = self._read().get("error")

    def run(self, runs: int) -> list[float]:
        """The seconds of each of ``runs`` runs."""
        found: list[float] = self._ask(f"run {runs}")["seconds"]
        return found

    def outputs(self, path: Path) -> list[np.ndarray]:
        """The outputs of the last run."""
        self._ask(f"save {path}")
        with np.load(path) as data:
            return [data[name] for name in data.files]

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()

    def _ask(self, command: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        return json.loads(line) if line else {"error": "its process ended"}


@contextmanager
def openvino(python: str | None, model: Path, feeds: Path, threads: int) -> Iterator[OpenVino | None]:
    """OpenVINO with the model; ``None`` without an interpreter that has it."""
    if python is None:
        yield None
        return
    made = OpenVino(python, model, feeds, threads)
    try:
        yield made
    finally:
        made.close()


def has_openvino(python: str) -> bool:
    """Whether the interpreter ``python`` has OpenVINO."""
    done = subprocess.run([python, "-c", "import openvino"], capture_output=True, check=False)
    return done.returncode == 0


def race(
    models: Mapping[str, tuple[str, SessionChoice | None]],
    feeds_path: Path,
    threads: int,
    peer: tuple[str | None, Path],
    seconds: float,
    index: int,
) -> dict[str, list[float]]:
    """The fastest seconds of each turn, by model and round; runs in a fresh process.

    Args:
        models: path and session options of each model.
        peer: an interpreter with OpenVINO, and the model that OpenVINO runs.
        index: number of the process, which determines the order of turns.
    """
    import onnxruntime

    with np.load(feeds_path) as data:
        feeds = {name: data[name] for name in data.files}
    running: dict[str, Timer] = {}
    for name in ratios.turn_order(list(models), index):
        path, choice = models[name]
        options = onnxruntime.SessionOptions()
        options.add_session_config_entry("session.force_spinning_stop", "1")
        running[name] = _timer(session.create(path, options=options, choice=choice, threads=threads), feeds)
    with openvino(peer[0], peer[1], feeds_path, threads) as beside:
        if beside is not None and beside.failure is None:
            running[OPENVINO] = beside.run
        return time_turns(running, seconds, turn=_TURN, bounds=_RUNS, first=index)


def _timer(made: Any, feeds: Mapping[str, np.ndarray]) -> Timer:
    known = {argument.name for argument in made.get_inputs()}
    given = {name: value for name, value in feeds.items() if name in known}
    return timer(lambda: made.run(None, given))
