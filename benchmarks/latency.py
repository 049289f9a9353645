"""Latency of models after `graphopt optimize -O3` and other optimizers, relative to the original.

    python -m benchmarks.latency                    on the samples
    python -m benchmarks.latency DIR --only 'bert|gpt2' --options "-O3 --tune"

Every model runs in onnxruntime's default session (its own optimizations on), on the CPU, with one thread,
timed by graphopt's harness: fresh processes, a new order in each round, medians of the ratios; the original
runs twice, and inside the 5th to 95th percentile of the ratios between the two nothing is claimed. The error
is the largest difference from the original's output relative to that output's largest element.
"""

from __future__ import annotations

import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import doc_tables, measured_models, measured_tools
from benchmarks.inputs import make_feeds
from benchmarks.measured_models import Case
from benchmarks.measured_tools import GRAPHOPT, Tool
from graphopt.errors import RuntimeFailure
from graphopt.ort.model_runs import Runs
from graphopt.timing.alternating_runs import RaceLimits, Setup
from graphopt.timing.compare_speed import Timing, compare_speed

ORIGINAL = "original"
COMPARED = ("onnxslim", "onnxsim")
TRANSFORMERS = "onnxruntime transformers"
_TRANSFORMERS = """
import sys
from onnxruntime.transformers.optimizer import optimize_model
kind = "gpt2" if "gpt2" in sys.argv[1] else "bert"
optimize_model(sys.argv[1], model_type=kind, opt_level=0).save_model_to_file(sys.argv[2])
"""


def results(case: Case, tools: list[Tool], scratch: Path) -> dict[str, Path]:
    """The result of each tool for a model; omitted if the tool fails."""
    found = {}
    for tool in tools:
        target = scratch / f"{case.name}-{tool.name.replace(' ', '-')}.onnx"
        outcome = tool.run(case.path, target)
        if outcome.status == 0 and target.is_file():
            found[tool.name] = target
        else:
            print(f"  {tool.name} failed: {outcome.message}", file=sys.stderr)
    return found


def errors(case: Case, made: dict[str, Path]) -> dict[str, float | None]:
    """The difference of each result's outputs from the original's; `None` if onnxruntime does not run it."""
    feeds = make_feeds(case.entry, 0)
    expected = Runs(str(case.path), threads=1).run("default", feeds)
    found: dict[str, float | None] = {}
    for name, path in made.items():
        try:
            actual = Runs(str(path), threads=1).run("default", feeds)
        except RuntimeFailure:
            found[name] = None
            continue
        pairs = zip(expected, actual, strict=True)
        found[name] = max((distance(a, b) for a, b in pairs), default=0.0)
    return found


def distance(a: Any, b: Any) -> float:
    """The largest difference relative to the largest element; infinite for different shapes."""
    if not isinstance(a, np.ndarray) or a.dtype.kind not in "fiub":
        return 0.0
    if a.shape != b.shape:
        return float("inf")
    if not a.size:
        return 0.0
    left, right = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(invalid="ignore"):
        apart = np.nan_to_num(np.abs(left - right)).max()
    return float(apart / max(np.nan_to_num(np.abs(left)).max(), 1e-12))


def measure(case: Case, made: dict[str, Path], limits: RaceLimits) -> Timing:
    sources = {ORIGINAL: str(case.path), **{name: str(path) for name, path in made.items()}}
    return compare_speed(sources, Setup(make_feeds(case.entry, 0), threads=1), limits)


def table(models: list[dict[str, Any]], names: list[str]) -> str:
    rows = []
    for model in models:
        cells = [_cell(model, name) for name in names]
        low, high = model["band"]
        error = model["errors"].get(GRAPHOPT)
        told = "–" if error is None else f"{error:.0e}"
        rows.append([model["model"], f"{model['milliseconds']:.2f}", *cells, f"{low:.2f} … {high:.2f}", told])
    header = ["model", "original (ms)", *names, "band", "error"]
    lines = [doc_tables.markdown_table(header, rows), ""]
    for name in names:
        found = [model["ratios"][name] for model in models if name in model["ratios"]]
        if found:
            mean = doc_tables.geometric_mean(found)
            lines.append(f"- {name}: {mean:.3f} (geometric mean over {len(found)} models)")
    lines += ["", f"Ratios to the original's time, on {doc_tables.machine()}."]
    return "\n".join(lines)


def _cell(model: dict[str, Any], name: str) -> str:
    ratio = model["ratios"].get(name)
    if ratio is None:
        return "failed"
    conclusion = model["conclusions"][name]
    return f"{ratio:.2f}" + (" slower" if conclusion == "slower" else "")


def main() -> int:
    parser = measured_models.arguments(__doc__ or "")
    parser.add_argument("--options", default="-O3", help="options of graphopt (default: -O3)")
    parser.add_argument("--processes", type=int, default=7, help="fresh processes (default: 7)")
    parser.add_argument("--seconds", type=float, default=60.0, help="seconds per model (default: 60)")
    options = parser.parse_args()

    found = {tool.name: tool for tool in measured_tools.peer_tools(options.peer_python)}
    tools = [measured_tools.graphopt_tool(*shlex.split(options.options))]
    tools += [found[name] for name in COMPARED if name in found]
    tools.append(Tool(TRANSFORMERS, (options.peer_python, "-c", _TRANSFORMERS)))
    limits = RaceLimits(processes=options.processes, seconds=options.seconds)
    models: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch_name:
        scratch = Path(scratch_name)
        for case in measured_models.progress(measured_models.cases(options, scratch)):
            made = results(case, tools, scratch)
            apart = errors(case, made)
            timing = measure(case, {name: made[name] for name in made if apart[name] is not None}, limits)
            speeds = {name: speed for name, speed in timing.speeds.items() if speed.comparison is not None}
            models.append(
                {
                    "model": case.name,
                    "milliseconds": timing.speeds[ORIGINAL].p50,
                    "ratios": {
                        name: speed.comparison.ratio for name, speed in speeds.items() if speed.comparison
                    },
                    "conclusions": {
                        name: speed.comparison.conclusion
                        for name, speed in speeds.items()
                        if speed.comparison
                    },
                    "band": [timing.band.low, timing.band.high],
                    "errors": apart,
                }
            )
            print(
                table(models[-1:], [tool.name for tool in tools]).splitlines()[2], file=sys.stderr, flush=True
            )
    text = table(models, [tool.name for tool in tools])
    facts = {"machine": doc_tables.machine(), "versions": doc_tables.versions(options.peer_python)}
    doc_tables.publish(options, "latency", text, facts | {"options": options.options, "models": models})
    return int(any("slower" in model["conclusions"].get(GRAPHOPT, "slower") for model in models))


if __name__ == "__main__":
    sys.exit(main())
