"""Native kernels on real models: `--fuser native --tune` against onnxruntime and OpenVINO.

    python -m benchmarks.kernels_on_models MODELS
    python -m benchmarks.kernels_on_models MODELS --only silero --threads 1 2 --budget 60s
    python -m benchmarks.kernels_on_models MODELS --peer-python PYTHON --docs docs/kernels.md

Each model is optimized by the command line, with an empty store. Then onnxruntime with all of its
optimizations runs the original, the original once more and the result alternately, in a new order in each
round, in fresh processes; OpenVINO takes its turns in a process beside them. Each process contributes one
ratio for each of them. The band is the 5th to 95th percentile of the ratios of the original to itself;
inside it, nothing is claimed. OpenVINO (of the interpreter --peer-python) computes in f32 with the same
number of threads. The error is the largest difference from the original's output, relative to that output's
largest element. The times to build the library are those of `graphopt kernels`, with an empty store and
with the store.

The exit status is 1 if a result is slower than its original.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import measured_models, measured_tools
from benchmarks.doc_tables import geometric_mean, machine, markdown_table, publish, versions
from benchmarks.inputs import make_feeds
from benchmarks.latency import distance
from benchmarks.measured_models import Case
from benchmarks.model_races import OPENVINO, has_openvino, openvino, race
from graphopt import ir
from graphopt.ort import session
from graphopt.ort.devices import CPU
from graphopt.ort.session_options import SessionChoice, recommended
from graphopt.process.child import Child
from graphopt.timing import ratios

ORIGINAL, TWIN, NATIVE = "onnxruntime", "onnxruntime again", "graphopt"


@dataclass(frozen=True)
class Result:
    """A model optimized with kernels.

    Attributes:
        seconds: wall time of `graphopt optimize --tune`.
        build_seconds, rebuild_seconds: times to build the library, with an empty store and with the store.
        kernels: number of kernels in it.
        library_bytes: its size.
    """

    path: Path
    choice: SessionChoice
    seconds: float
    build_seconds: float
    rebuild_seconds: float
    kernels: int
    library_bytes: int


def optimize(case: Case, feeds: Path, threads: int, budget: str, folder: Path) -> Result | str:
    """The model after `--fuser native --tune`; the message of graphopt if that fails."""
    target, report = folder / "result.onnx", folder / "report.json"
    store = f"cache-dir={folder / 'store'}"
    options = ["--fuser", "native", "--tune", "--budget", budget, "--threads", str(threads), "--set", store]
    tool = measured_tools.graphopt_tool(*options, "--input", str(feeds), "--report", str(report))
    outcome = tool.run(case.path, target, timeout=3600)
    if outcome.status != 0:
        return outcome.message
    library = target.with_suffix(".kernels.so")
    kernels = len(json.loads(report.read_text(encoding="utf-8")).get("kernels") or [])
    choice = recommended(ir.load(target), CPU)
    first = again = 0.0
    if library.is_file():
        choice |= SessionChoice(libraries=(str(library),))
        first, again = _build_seconds(target, folder), _build_seconds(target, folder)
    size = library.stat().st_size if library.is_file() else 0
    return Result(target, choice, outcome.seconds, first, again, kernels, size)


def _build_seconds(model: Path, folder: Path) -> float:
    """The wall seconds of `graphopt kernels` with the store of earlier calls."""
    words = [*measured_tools.GRAPHOPT_COMMAND[:-1], "kernels", str(model), "-o", str(folder / "again.so")]
    begin = time.perf_counter()
    subprocess.run(
        [*words, "--set", f"cache-dir={folder / 'build-store'}"],
        cwd=measured_tools.ROOT, capture_output=True, check=True,
    )  # fmt: skip
    return time.perf_counter() - begin


def measure(
    case: Case, result: Result, feeds_path: Path, threads: int, peer: str | None, limits: tuple[int, float]
) -> dict[str, Any]:
    """Times, ratios to the original and errors."""
    plain = str(case.path)
    models = {ORIGINAL: (plain, None), NATIVE: (str(result.path), result.choice), TWIN: (plain, None)}
    found: list[dict[str, list[float]]] = []
    processes, seconds = limits
    for index in range(processes):
        with Child(preload=["onnxruntime", "benchmarks.model_races"], fresh=True) as child:
            arguments = (models, feeds_path, threads, (peer, case.path), seconds, index)
            found.append(child.call(race, *arguments, timeout=600 + 10 * seconds))
    series = {
        name: [_ratio(times, name) for times in found if name in times] for name in (NATIVE, TWIN, OPENVINO)
    }
    band = ratios.band_of(series[TWIN])
    with np.load(feeds_path) as data:
        feeds = {name: data[name] for name in data.files}
    expected = session.run(session.create(plain, threads=threads), feeds)
    running = session.create(str(result.path), threads=threads, choice=result.choice)
    errors = {NATIVE: _error(expected, session.run(running, feeds))}
    with openvino(peer, case.path, feeds_path, threads) as beside:
        failure = None if beside is None else beside.failure
        if beside is not None and failure is None:
            errors[OPENVINO] = _error(expected, beside.outputs(feeds_path.with_name("openvino.npz")))
    compared = {name: ratios.compare(series[name], band) for name in (NATIVE, OPENVINO) if series[name]}
    return {
        "milliseconds": ratios.median([t for times in found for t in times[ORIGINAL]]) * 1e3,
        "ratios": {name: one.ratio for name, one in compared.items()},
        "conclusions": {name: one.conclusion for name, one in compared.items()},
        "band": [band.low, band.high],
        "errors": errors,
        "openvino_failure": failure,
        "kernels": result.kernels,
        "tune_seconds": result.seconds,
        "build_seconds": [result.build_seconds, result.rebuild_seconds],
        "library_bytes": result.library_bytes,
    }


def _ratio(times: Mapping[str, list[float]], name: str) -> float:
    return ratios.median([a / b for a, b in zip(times[name], times[ORIGINAL], strict=True)])


def _error(expected: list[Any], actual: list[Any]) -> float:
    pairs = [(a, b) for a, b in zip(expected, actual, strict=True) if np.asarray(a).dtype.kind == "f"]
    return max((distance(np.asarray(a), np.asarray(b)) for a, b in pairs), default=0.0)


# The table ----------------------------------------------------------------------------------------


def table(rows: list[dict[str, Any]]) -> str:
    header = [
        "model", "threads", "onnxruntime (ms)", NATIVE, "band", OPENVINO, "error", "of OpenVINO", "kernels",
        "build (s)", "from the store (s)", "library (KB)",
    ]  # fmt: skip
    lines = []
    for row in rows:
        low, high = row["band"]
        cells = [_cell(row, name) for name in (NATIVE, OPENVINO)]
        errors = [
            f"{row['errors'][name]:.0e}" if name in row["errors"] else "" for name in (NATIVE, OPENVINO)
        ]
        built = [f"{seconds:.1f}" if row["kernels"] else "" for seconds in row["build_seconds"]]
        size = f"{row['library_bytes'] / 1024:.0f}" if row["kernels"] else ""
        lines.append(
            [
                row["model"], row["threads"], f"{row['milliseconds']:.3g}", cells[0],
                f"{low:.2f} … {high:.2f}", cells[1], *errors, row["kernels"], *built, size,
            ]
        )  # fmt: skip
    return markdown_table(header, lines)


def _cell(row: dict[str, Any], name: str) -> str:
    if name not in row["ratios"]:
        return "fails" if row["openvino_failure"] else ""
    conclusion = row["conclusions"][name]
    return f"{row['ratios'][name]:.2f}{' slower' * (conclusion == 'slower' and name == NATIVE)}"


def summary(rows: list[dict[str, Any]]) -> Iterator[str]:
    """The geometric means for each number of threads, and the models on which OpenVINO is ahead."""
    for threads in dict.fromkeys(row["threads"] for row in rows):
        chosen = [row for row in rows if row["threads"] == threads]
        for name in (NATIVE, OPENVINO):
            found = [row["ratios"][name] for row in chosen if name in row["ratios"]]
            if found:
                count = f"{threads} thread{'s' * (threads != 1)}"
                mean = f"{geometric_mean(found):.3f} (geometric mean of {len(found)} models)"
                yield f"- {name}, {count}: {mean}"
        ahead = [
            row["model"]
            for row in chosen
            if OPENVINO in row["ratios"] and row["ratios"][OPENVINO] < row["ratios"][NATIVE]
        ]
        if ahead:
            yield f"- OpenVINO is ahead of the result on {', '.join(ahead)}"


def main() -> int:
    parser = measured_models.arguments(__doc__ or "")
    parser.add_argument("--threads", type=int, nargs="+", default=[1], help="numbers of threads (default: 1)")
    parser.add_argument("--budget", default="2m", help="of --tune, for each model (default: 2m)")
    parser.add_argument("--processes", type=int, default=5, help="fresh processes (default: 5)")
    parser.add_argument("--seconds", type=float, default=3.0, help="seconds per process (default: 3)")
    options = parser.parse_args()
    peer = options.peer_python if has_openvino(options.peer_python) else None
    if peer is None:
        print(f"without OpenVINO, which {options.peer_python} lacks", file=sys.stderr)
    rows: list[dict[str, Any]] = []
    limits = (options.processes, options.seconds)
    with tempfile.TemporaryDirectory() as scratch:
        for case in measured_models.progress(measured_models.cases(options, Path(scratch))):
            for threads in options.threads:
                with tempfile.TemporaryDirectory(dir=scratch) as folder:
                    feeds_path = Path(folder) / "feeds.npz"
                    np.savez(feeds_path, allow_pickle=False, **make_feeds(case.entry, 0))
                    result = optimize(case, feeds_path, threads, options.budget, Path(folder))
                    if isinstance(result, str):
                        print(f"{case.name}: {result}", file=sys.stderr)
                        continue
                    found = measure(case, result, feeds_path, threads, peer, limits)
                rows.append({"model": case.name, "threads": threads} | found)
                print(table(rows[-1:]).splitlines()[2], file=sys.stderr, flush=True)
    text = "\n".join([table(rows), "", *summary(rows), "", f"Ratios to onnxruntime's time, on {machine()}."])
    facts = {"machine": machine(), "versions": versions(options.peer_python)}
    publish(options, "kernels-on-models", text, facts | {"budget": options.budget, "models": rows})
    return int(any(row["conclusions"][NATIVE] == "slower" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
