"""Check that `graphopt optimize` makes no model slower: CPU time of one thread, relative to the original.

    python -m benchmarks.never_slower DIR
    python -m benchmarks.never_slower DIR --only 'resnet|bert' --levels -O3 --processes 5

In each of several fresh processes, default sessions with one thread run the original, a second session of the
original (A/A) and each result alternately, in a new order in each round. The time is that of the thread
(CLOCK_THREAD_CPUTIME_ID), which other load affects far less than wall time; a process reports the ratio of
medians. A result is slower if the median of its ratios over the processes is above the largest
A/A ratio by more than `--margin`. The exit status is 1 if any result is slower.
"""

from __future__ import annotations

import json
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import doc_tables, measured_models, measured_tools
from benchmarks.inputs import make_feeds
from benchmarks.measured_models import Case
from graphopt.ort import session
from graphopt.ort.session_options import SessionChoice

ORIGINAL, TWIN = "original", "A/A"
LEVELS = ("-O2", "-O3", "--fuser native")


def ratios_of(
    paths: Mapping[str, str], feeds: Mapping[str, Any], seconds: float, seed: int
) -> dict[str, float]:
    """The ratio of each model's median CPU time to the original's, in this process."""
    order = [ORIGINAL, TWIN, *(name for name in paths if name != ORIGINAL)]
    random = np.random.default_rng(seed)
    sessions = {}
    for name in random.permutation(order):
        path = paths[ORIGINAL if name == TWIN else name]
        sessions[name] = session.create(path, threads=1, choice=kernels_of(path))
    times: dict[str, list[float]] = {name: [] for name in order}
    for running in sessions.values():  # allocations and packed weights
        for _ in range(2):
            session.run(running, feeds)
    begin = time.monotonic()
    while time.monotonic() - begin < seconds or len(times[ORIGINAL]) < 5:
        for name in random.permutation(order):
            start = time.thread_time()
            session.run(sessions[name], feeds)
            times[name].append(time.thread_time() - start)
    base = statistics.median(times[ORIGINAL])
    return {name: statistics.median(found) / base for name, found in times.items() if name != ORIGINAL}


def kernels_of(path: str) -> SessionChoice:
    """The session options for a model, with the library beside it."""
    library = Path(path).with_suffix(".kernels.so")
    return SessionChoice(libraries=(str(library),) if library.is_file() else ())


def measure(case: Case, made: Mapping[str, Path], shape_set: int, options: Any) -> list[dict[str, float]]:
    """The ratios of each process."""
    found = []
    paths = {ORIGINAL: str(case.path), **{name: str(path) for name, path in made.items()}}
    for seed in range(options.processes):
        request = {
            "paths": paths,
            "entry": case.entry,
            "set": shape_set,
            "seconds": options.seconds,
            "seed": seed,
        }
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.never_slower", "--worker"],
            input=json.dumps(request), cwd=measured_tools.ROOT, capture_output=True, text=True, check=True,
        )  # fmt: skip
        found.append(json.loads(done.stdout.splitlines()[-1]))
    return found


def results(case: Case, levels: list[str], scratch: Path) -> dict[str, Path]:
    """The model at each level, not verified."""
    found = {}
    for number, level in enumerate(levels):
        target = scratch / f"{case.name}-{number}.onnx"
        outcome = measured_tools.graphopt_tool(*shlex.split(level), "--no-verify").run(case.path, target)
        if outcome.status != 0:
            raise SystemExit(f"{case.name} {level}: {outcome.message}")
        found[level] = target
    return found


def main() -> int:
    if sys.argv[1:] == ["--worker"]:
        request = json.load(sys.stdin)
        feeds = make_feeds(request["entry"], request["set"])
        print(json.dumps(ratios_of(request["paths"], feeds, request["seconds"], request["seed"])))
        return 0
    parser = measured_models.arguments(__doc__ or "")
    parser.add_argument(
        "--levels", nargs="+", default=list(LEVELS), help="options of graphopt, one string per level"
    )
    parser.add_argument("--processes", type=int, default=5, help="fresh processes (default: 5)")
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds per process (default: 2)")
    parser.add_argument(
        "--margin", type=float, default=0.01, help="accepted slowdown beyond the A/A ratios (default: 0.01)"
    )
    options = parser.parse_args()
    rows, slower = [], []
    with tempfile.TemporaryDirectory() as scratch:
        for case in measured_models.progress(measured_models.cases(options, Path(scratch))):
            made = results(case, options.levels, Path(scratch))
            for shape_set in range(len(case.entry["shape_sets"])):
                found = measure(case, made, shape_set, options)
                twins = sorted(process[TWIN] for process in found)
                limit = max(1.0, twins[-1]) + options.margin
                cells = []
                for level in options.levels:
                    ratio = statistics.median(process[level] for process in found)
                    cells.append(f"{ratio:.3f}" + (" slower" if ratio > limit else ""))
                    if ratio > limit:
                        slower.append(f"{case.name} {level} ({ratio:.3f})")
                rows.append([case.name, str(shape_set), *cells, f"{twins[0]:.3f} … {twins[-1]:.3f}"])
                print(" ".join(rows[-1]), file=sys.stderr)
    print(doc_tables.markdown_table(["model", "shapes", *options.levels, "A/A"], rows))
    print(f"\nRatios to the original's CPU time, one thread, on {doc_tables.machine()}.")
    for name in slower:
        print(f"slower: {name}")
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
