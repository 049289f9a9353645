"""Whole-process wall time of a first and a second `graphopt optimize` of the same model.

    python -m benchmarks.result_cache                the samples
    python -m benchmarks.result_cache MODELS         a folder of models
    python -m benchmarks.result_cache MODELS -- -O3  with options of graphopt optimize

Both runs are fresh processes, with an empty store before the first. The second must reuse the result, and
write the same bytes. The exit status is 1 if it does not, or if the median of the ratios exceeds 0.35.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import measured_models
from graphopt import config
from graphopt.util.text_tables import Table

#: Maximum median of the ratios between the second and the first run.
LIMIT = 0.35


def run(model: Path, target: Path, store: Path, options: Sequence[str]) -> tuple[float, dict[str, Any]]:
    """The seconds of a process that optimizes `model`, and its report."""
    words = [sys.executable, "-m", "graphopt", "optimize", str(model), "-o", str(target), "--json", *options]
    environ = config.environment(GRAPHOPT_CACHE="true", GRAPHOPT_CACHE_DIR=str(store))
    begin = time.perf_counter()
    done = subprocess.run(words, env=environ, stdout=subprocess.PIPE, check=True)
    return time.perf_counter() - begin, json.loads(done.stdout)


def measure(model: Path, options: Sequence[str]) -> tuple[float, float, str]:
    """The seconds of a first and a second run, and the fault of the second; empty if there is none."""
    with tempfile.TemporaryDirectory() as folder:
        store, target = Path(folder, "store"), Path(folder, "out", "model.onnx")
        target.parent.mkdir()
        first, _ = run(model, target, store, options)
        written = {path.name: path.read_bytes() for path in target.parent.iterdir()}
        second, report = run(model, target, store, options)
        if not report["cache"]["hit"]:
            return first, second, f"not reused: {report['cache']['reason']}"
        same = written == {path.name: path.read_bytes() for path in target.parent.iterdir()}
        return first, second, "" if same else "other bytes"


def main(words: Sequence[str]) -> int:
    """Measure, and print a table; returns the exit status."""
    words, options = (
        (words[: words.index("--")], words[words.index("--") + 1 :]) if "--" in words else (words, [])
    )
    chosen = measured_models.arguments(__doc__ or "").parse_args(words)
    table, ratios, faults = Table(["model", "first s", "second s", "ratio", ""], "<>>><"), [], 0
    with tempfile.TemporaryDirectory() as scratch:
        for case in measured_models.progress(measured_models.cases(chosen, Path(scratch))):
            first, second, fault = measure(case.path, options)
            ratios.append(second / first)
            faults += bool(fault)
            table.add(case.name, f"{first:.2f}", f"{second:.2f}", f"{ratios[-1]:.2f}", fault)
    median = statistics.median(ratios)
    print(table)
    print(f"median {median:.2f} over {len(ratios)} models, {faults} faults")
    return int(bool(faults) or median > LIMIT)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
