"""Latency of models with guarded variants, for inputs that satisfy a guard and inputs that satisfy none.

    python -m benchmarks.specialize DIR --only 'gpt2|silero' --docs docs/specialize.md

Each model is profiled on all of its sets of shapes but the last, optimized by `graphopt optimize -O3
--profile`, and timed on the first set, which satisfies a guard (*hit*), and on the last (*miss*), against the
original and against the general model without guards. The method is that of benchmarks.latency.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import graphopt
from benchmarks import doc_tables, measured_models
from benchmarks.inputs import Feeds, make_feeds
from benchmarks.latency import distance
from benchmarks.measured_models import Case
from graphopt.api import specialize
from graphopt.ort.model_runs import Runs
from graphopt.specialization.build_variants import Specialization, Specialized
from graphopt.timing.alternating_runs import RaceLimits, Setup
from graphopt.timing.compare_speed import Timing, compare_speed

ORIGINAL, GENERAL, GUARDED = "original", "general", "guarded"


def specialized(case: Case, sets: range, most: int | None) -> Specialized:
    """The model and its variants for these sets of shapes, each profiled with two sets of values."""
    runs = [make_feeds(case.entry, index, seed) for index in sets for seed in (0, 1)]
    profile = graphopt.record_profile(case.path, runs)
    return specialize(case.path, Specialization(profile, most=most), pipeline="O3")


def measure(paths: dict[str, Path], feeds: Feeds, limits: RaceLimits) -> dict[str, Any]:
    """Ratios to the original for each kind of input, and differences of outputs."""
    sources = {name: str(path) for name, path in paths.items()}
    timing: Timing = compare_speed(sources, Setup(feeds, threads=1), limits)
    expected, actual = (Runs(sources[name], threads=1).run("default", feeds) for name in (ORIGINAL, GUARDED))
    pairs = zip(expected, actual, strict=True)
    compared = {name: speed.comparison for name, speed in timing.speeds.items() if speed.comparison}
    return {
        "milliseconds": timing.speeds[ORIGINAL].p50,
        "ratios": {name: found.ratio for name, found in compared.items()},
        "conclusions": {name: found.conclusion for name, found in compared.items()},
        "band": [timing.band.low, timing.band.high],
        "error": max((distance(a, b) for a, b in pairs), default=0.0),
    }


def run(case: Case, scratch: Path, limits: RaceLimits, most: int | None) -> dict[str, Any]:
    """All figures of one model."""
    sets = range(len(case.entry["shape_sets"]))
    found = specialized(case, sets[:-1] or sets, most)
    assert found.model is not None
    paths = {ORIGINAL: case.path, GENERAL: scratch / "general.onnx", GUARDED: scratch / f"{case.name}.onnx"}
    graphopt.save(found.general, paths[GENERAL])
    files = graphopt.save(found.model, paths[GUARDED], weights="beside" if found.branches else None)
    places = {"hit": sets[0]} | ({"miss": sets[-1]} if len(sets) > 1 else {})
    return {
        "model": case.name,
        "variants": [branch.name for branch in found.branches],
        "left_out": {told.variant.name: told.left_out for told in found.report.variants if told.left_out},
        "bytes": [case.path.stat().st_size, sum(file.stat().st_size for file in files)],
        **{place: measure(paths, make_feeds(case.entry, index), limits) for place, index in places.items()},
    }


def table(models: list[dict[str, Any]]) -> str:
    """The figures as Markdown."""
    rows = []
    for model in models:
        row = [model["model"], ", ".join(model["variants"]) or "none pays"]
        for place in ("hit", "miss"):
            found = model.get(place)
            row += ["", "", ""] if found is None else _cells(found)
        before, after = model["bytes"]
        rows.append([*row, f"{after / before:.2f}"])
    header = ["model", "variants", "hit (ms)", "ratio", "general", "miss (ms)", "ratio", "general", "bytes"]
    note = f"Ratios to the original's time, and to its bytes, on {doc_tables.machine()}; bands of hits"
    bands = ", ".join(
        f"{model['model']} {model['hit']['band'][0]:.2f} … {model['hit']['band'][1]:.2f}" for model in models
    )
    worst = max(model[place]["error"] for model in models for place in ("hit", "miss") if place in model)
    return "\n".join(
        [doc_tables.markdown_table(header, rows), "", f"{note}: {bands}. Largest relative error {worst:.0e}."]
    )


def _cells(found: dict[str, Any]) -> list[str]:
    told = []
    for name in (GUARDED, GENERAL):
        ratio = found["ratios"].get(name)
        slower = found["conclusions"].get(name) == "slower"
        told.append("–" if ratio is None else f"{ratio:.2f}" + " slower" * slower)
    return [f"{found['milliseconds']:.3f}", *told]


def main() -> int:
    """Measure, print the table, and insert it into documents."""
    parser = measured_models.arguments(__doc__ or "")
    parser.add_argument("--variants", type=int, help="maximum number of variants")
    parser.add_argument("--processes", type=int, default=7, help="fresh processes (default: 7)")
    parser.add_argument(
        "--seconds", type=float, default=30.0, help="seconds per model and kind of input (default: 30)"
    )
    options = parser.parse_args()
    limits = RaceLimits(processes=options.processes, seconds=options.seconds)
    models: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch_name:
        for case in measured_models.progress(measured_models.cases(options, Path(scratch_name))):
            models.append(run(case, Path(scratch_name), limits, options.variants))
            print(table(models[-1:]).splitlines()[2], file=sys.stderr, flush=True)
    facts = {"machine": doc_tables.machine(), "versions": doc_tables.versions(options.peer_python)}
    doc_tables.publish(options, "specialize", table(models), facts | {"models": models})
    return int(any(_slow(model[place]) for model in models for place in ("hit", "miss") if place in model))


def _slow(found: dict[str, Any]) -> bool:
    """Whether the guarded model is slower by more than noise and 10 microseconds."""
    ratio = found["ratios"][GUARDED]
    more = (ratio - 1) * found["milliseconds"] * 1000
    return found["conclusions"][GUARDED] == "slower" and more > 10


if __name__ == "__main__":
    sys.exit(main())
