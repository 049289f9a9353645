"""CPU time with `--profile`, `--fuser native` and `--tune`, each alone and together.

    python -m benchmarks.combined_options DIR --only 'gpt2|moe' --docs docs/specialize.md

Each model is profiled on all of its sets of shapes but the last, and optimized by `graphopt optimize` with
each combination; tuning uses the first set. The outputs for all sets are compared with those of the
original at both levels of onnxruntime's optimizations. Times are measured by the method of
benchmarks.never_slower on the first set, which satisfies a guard (*hit*), and on the last (*miss*): CPU
time of one thread relative to the original's, in fresh processes, in a new order in each round. A
difference counts if it is larger than the range of the ratios of the original to itself. The exit status is
1 if a result is wrong, or if all options together are slower than one of them, or than the original.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import graphopt
from benchmarks import doc_tables, measured_models, measured_tools
from benchmarks.inputs import make_feeds
from benchmarks.judge import compare
from benchmarks.measured_models import Case
from benchmarks.never_slower import ORIGINAL, TWIN, kernels_of, measure
from graphopt.ort.model_runs import Runs
from graphopt.ort.session import Optimizations

ALL = "all three"
LEVELS: tuple[Optimizations, ...] = ("off", "default")
#: Options of each combination; {profile}, {inputs} and {budget} are replaced.
COMBINATIONS = {
    "-O3": "-O3",
    "--profile": "-O3 --profile {profile}",
    "--fuser native": "--fuser native",
    "--tune": "-O3 --tune --input {inputs} --budget {budget} --threads 1",
    ALL: "--fuser native --profile {profile} --tune --budget {budget} --threads 1",
}


def optimized(case: Case, scratch: Path, budget: str) -> tuple[dict[str, Path], dict[str, str]]:
    """The results of all combinations, and their verdicts."""
    sets = range(len(case.entry["shape_sets"]))
    runs = [make_feeds(case.entry, index, seed) for index in sets[:-1] or sets for seed in (0, 1)]
    profile = scratch / f"{case.name}.json"
    graphopt.record_profile(case.path, runs).write(profile)
    inputs = scratch / f"{case.name}.npz"
    np.savez(inputs, **make_feeds(case.entry, 0))  # type: ignore[arg-type]  # numpy's stubs
    paths, verdicts = {}, {}
    for number, (name, text) in enumerate(COMBINATIONS.items()):
        words = [word.format(profile=profile, inputs=inputs, budget=budget) for word in text.split()]
        paths[name] = scratch / f"{case.name}-{number}.onnx"
        outcome = measured_tools.graphopt_tool(*words).run(case.path, paths[name])
        if outcome.status != 0:
            raise SystemExit(f"{case.name} {name}: {outcome.message}")
        verdicts[name] = verdict(case, paths[name])
        print(f"  {name}: {outcome.seconds:.0f} s, {verdicts[name]}", file=sys.stderr, flush=True)
    return paths, verdicts


def verdict(case: Case, result: Path) -> str:
    """`ok` if the result computes the same as the original, or a difference.

    At the default level, outputs may differ by as much as onnxruntime's optimizations change the original's.
    """
    runs = Runs(str(case.path), threads=1), Runs(str(result), threads=1, choice=kernels_of(str(result)))
    for index in range(len(case.entry["shape_sets"])):
        feeds = make_feeds(case.entry, index)
        expected, found = ({level: one.run(level, feeds) for level in LEVELS} for one in runs)
        for level in LEVELS:
            for plain, output, actual in zip(expected["off"], expected[level], found[level], strict=True):
                noise = compare(plain, output)[1]
                equal, difference = compare(output, actual)
                if not equal and not difference <= (noise if np.isfinite(noise) else 0.0):
                    return f"an output differs by {difference:.3g} on the set of shapes {index} ({level})"
    return "ok"


def figures(ratios: list[dict[str, float]]) -> dict[str, Any]:
    """The median ratio of each combination, and the range of the ratios of the original to itself."""
    names = [name for name in ratios[0] if name not in (ORIGINAL, TWIN)]
    twins = [process[TWIN] for process in ratios]
    return {
        "ratios": {name: statistics.median(process[name] for process in ratios) for name in names},
        "band": [min(*twins, 1.0), max(*twins, 1.0)],
    }


def is_slower(found: dict[str, Any]) -> bool:
    """Whether all options together are slower than one of them or the original by more than the band."""
    band = found["band"][1] - found["band"][0]
    return bool(found["ratios"][ALL] > min(1.0, *found["ratios"].values()) + band)


def table(rows: list[dict[str, Any]]) -> str:
    """One line for each model and kind of inputs."""
    lines = []
    for row in rows:
        for kind, found in row["inputs"].items():
            cells = [f"{found['ratios'][name]:.3f}" for name in COMBINATIONS]
            slower = " slower" * is_slower(found)
            low, high = found["band"]
            lines.append([row["model"], kind, *cells[:-1], cells[-1] + slower, f"{low:.3f} … {high:.3f}"])
    return doc_tables.markdown_table(["model", "inputs", *COMBINATIONS, "band"], lines)


def main() -> int:
    """Measure, print the table, and insert it into documents."""
    parser = measured_models.arguments(__doc__ or "")
    parser.add_argument("--processes", type=int, default=7, help="fresh processes (default: 7)")
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds per process (default: 2)")
    parser.add_argument("--budget", default="60s", help="time for tuning a model (default: 60s)")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        for case in measured_models.progress(measured_models.cases(options, Path(scratch))):
            paths, verdicts = optimized(case, Path(scratch), options.budget)
            last = len(case.entry["shape_sets"]) - 1
            inputs = {
                kind: figures(measure(case, paths, index, options))
                for kind, index in ({"hit": 0} | ({"miss": last} if last else {})).items()
            }
            rows.append({"model": case.name, "inputs": inputs, "verdicts": verdicts})
            print(table(rows[-1:]), file=sys.stderr, flush=True)
    text = f"{table(rows)}\n\nRatios to the original's CPU time, one thread, on {doc_tables.machine()}."
    doc_tables.publish(options, "combined-options", text, {"machine": doc_tables.machine(), "models": rows})
    wrong = [row["model"] for row in rows for one in row["verdicts"].values() if one != "ok"]
    return int(bool(wrong) or any(is_slower(one) for row in rows for one in row["inputs"].values()))


if __name__ == "__main__":
    sys.exit(main())
