"""Whole-process wall time of `graphopt optimize --no-verify` against onnxslim and onnxsim.

    python -m benchmarks.process_time               on the samples
    python -m benchmarks.process_time DIR           on a folder of models

Each run is a fresh process, from its start to the written file. Tools run alternately, in a new order in each
round. graphopt runs twice per round, as if it were two tools: the spread of the ratios between those two (5th
to 95th percentile over the models) is the band within which no difference is claimed.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import doc_tables, measured_models, measured_tools
from benchmarks.measured_models import Case
from benchmarks.measured_tools import GRAPHOPT, Tool
from graphopt.timing.ratios import band_of, turn_order

AGAIN = "graphopt again"
COMPARED = ("onnxslim", "onnxsim")


def measure(case: Case, tools: list[Tool], rounds: int, scratch: Path) -> dict[str, list[float]]:
    """Seconds of each run by tool; empty for a tool that fails on the model."""
    by_name = {tool.name: tool for tool in tools}
    seconds: dict[str, list[float]] = {name: [] for name in by_name}
    failed: set[str] = set()
    for turn in range(rounds):
        for name in turn_order(list(by_name), turn):
            if name in failed:
                continue
            target = scratch / "result.onnx"
            target.unlink(missing_ok=True)
            outcome = by_name[name].run(case.path, target)
            if outcome.status == 0 and target.is_file():
                seconds[name].append(outcome.seconds)
            else:
                print(f"  {name} failed: {outcome.message}", file=sys.stderr)
                failed.add(name)
    return {name: runs for name, runs in seconds.items() if name not in failed}


def ratios(models: list[dict[str, Any]], name: str) -> list[float]:
    """The ratio of graphopt's median to that of `name`, for each model on which both ran."""
    return [
        model["medians"][GRAPHOPT] / model["medians"][name]
        for model in models
        if GRAPHOPT in model["medians"] and name in model["medians"]
    ]


def table(models: list[dict[str, Any]], peers: list[str], rounds: int) -> str:
    """Medians in seconds, one row per model; below, the geometric means of the ratios and the A/A band."""
    rows: list[list[object]] = []
    for model in models:
        medians = model["medians"]
        cells = [f"{medians[name]:.2f}" if name in medians else "failed" for name in (GRAPHOPT, *peers)]
        rows.append([model["model"], *cells])
    lines = [doc_tables.markdown_table(["model (seconds)", GRAPHOPT, *peers], rows), ""]
    for peer in peers:
        if found := ratios(models, peer):
            mean = doc_tables.geometric_mean(found)
            lines.append(f"- graphopt / {peer}: {mean:.2f} (geometric mean over {len(found)} models)")
    if found := ratios(models, AGAIN):
        band = band_of(found)
        lines.append(f"- graphopt / graphopt: {band.low:.2f} … {band.high:.2f} (band of the measurement)")
    lines += ["", f"Medians of {rounds} rounds on {doc_tables.machine()}."]
    return "\n".join(lines)


def main() -> int:
    parser = measured_models.arguments(__doc__ or "")
    parser.add_argument("--rounds", type=int, default=7, help="runs of each tool on each model (default: 7)")
    options = parser.parse_args()

    found = {tool.name: tool for tool in measured_tools.peer_tools(options.peer_python)}
    peers = [name for name in COMPARED if name in found]
    own = measured_tools.graphopt_tool("--no-verify")
    tools = [own, *(found[name] for name in peers), Tool(AGAIN, own.command, own.before_target)]
    models: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch_name:
        scratch = Path(scratch_name)
        chosen = measured_models.cases(options, scratch)
        measure(chosen[0], tools, 1, scratch)  # fills the page cache with everybody's libraries
        for case in measured_models.progress(chosen):
            seconds = measure(case, tools, options.rounds, scratch)
            medians = {name: statistics.median(runs) for name, runs in seconds.items()}
            models.append({"model": case.name, "medians": medians, "seconds": seconds})
    text = table(models, peers, options.rounds)
    facts = {"machine": doc_tables.machine(), "versions": doc_tables.versions(options.peer_python)}
    doc_tables.publish(options, "process-time", text, facts | {"rounds": options.rounds, "models": models})
    return int(any(GRAPHOPT not in model["medians"] for model in models))


if __name__ == "__main__":
    sys.exit(main())
