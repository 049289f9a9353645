"""The measured programs: optimizers as command lines, and their resource usage."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.inputs import Entry
from graphopt.timing import other_optimizers

ROOT = Path(__file__).resolve().parent.parent
GRAPHOPT = "graphopt"
# Equivalent to the console script, wherever that is installed.
GRAPHOPT_COMMAND = [
    sys.executable,
    "-c",
    "from graphopt.cli.main import run; run()",
    "optimize",
]


@dataclass(frozen=True)
class Outcome:
    """A run of a tool: its exit status (``None`` after a timeout), seconds, and the last line of stderr."""

    status: int | None
    seconds: float
    message: str


@dataclass(frozen=True)
class Tool:
    """An optimizer as a command line, to which IN and OUT are appended."""

    name: str
    command: tuple[str, ...]
    before_target: tuple[str, ...] = ()

    def run(self, source: Path, target: Path, timeout: float = 600) -> Outcome:
        """Optimize `source` into `target` in a separate process."""
        command = [*self.command, str(source), *self.before_target, str(target)]
        begin = time.perf_counter()
        try:
            done = subprocess.run(
                command, cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False
            )
        except subprocess.TimeoutExpired:
            return Outcome(None, time.perf_counter() - begin, f"no result after {timeout:.0f} s")
        seconds = time.perf_counter() - begin
        words = (done.stderr.strip() or done.stdout.strip()).splitlines()
        words = [line for line in words if not line.startswith("hint:")]
        return Outcome(done.returncode, seconds, words[-1][:300] if words else "")


@dataclass(frozen=True)
class Usage:
    """Resource usage of a run of a tool; `status` as in Outcome."""

    status: int
    message: str
    seconds: float
    cpu_seconds: float
    peak_bytes: int
    anonymous_bytes: int | None = None


def metered(tool: Tool, source: Path, target: Path, *, sample: bool = False) -> Usage:
    """Optimize `source` into `target`; returns resource usage, with anonymous memory if `sample`."""
    meter = [
        sys.executable,
        "-S",
        str(ROOT / "benchmarks" / "resource_usage.py"),
        *(["--sample"] if sample else []),
    ]
    command = [*meter, *tool.command, str(source), *tool.before_target, str(target)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return Usage(**json.loads(done.stdout.splitlines()[-1]))


def graphopt_tool(*options: str) -> Tool:
    return Tool(GRAPHOPT, (*GRAPHOPT_COMMAND, *options), ("-o",))


def peer_tools(python: str) -> list[Tool]:
    """The peers installed for the interpreter `python`."""
    return [Tool(name, other_optimizers.command(python, name)) for name in other_optimizers.versions(python)]


def judge(original: Path, result: Path, entry: Entry) -> dict[str, Any]:
    """The verdict of benchmarks.judge, in a separate process, because an invalid model may crash it."""
    command = [sys.executable, "-m", "benchmarks.judge", str(original), str(result)]
    recipe = json.dumps({key: entry[key] for key in ("inputs", "shape_sets")})
    done = subprocess.run(
        [*command, "--entry", recipe], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        return {"verdict": "refused", "detail": f"onnxruntime ended with status {done.returncode}"}
    verdict: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return verdict
