"""The enlarged samples on the CUDA provider: correctness and speed of the optimized models.

    make gpu-check                                  (python3 benchmarks/gpu_check.py from the source tree)
    python3 benchmarks/gpu_check.py --device cpu    rehearses it without a GPU

For each model: the largest error of the original and of the optimized model relative to the CPU's result,
with TF32 off; the latency of both with inputs and outputs bound on the device, at onnxruntime's defaults; how
many nodes run on the CPU, and the number of copies between CPU and device. Timed as described in
docs/bench.md: alternately, in fresh processes, and the original also against itself; inside the band of those
ratios, no difference is claimed. The exit status is 1 if a result is wrong, and 6 if CUDA can't be used.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from benchmarks import doc_tables, measured_models, measured_tools
from benchmarks.inputs import Entry, make_feeds
from graphopt.errors import RuntimeFailure
from graphopt.ort import session
from graphopt.ort.devices import CPU, Device, choose
from graphopt.timing.alternating_runs import RaceLimits, Setup, output_shapes
from graphopt.timing.compare_speed import compare_speed
from graphopt.timing.footprint import footprint

# No further model is started after this many seconds.
BUDGET = 360
LIMITS = RaceLimits(rounds=30, processes=5, warmup=20, seconds=40)


@dataclass(frozen=True)
class Case:
    """A sample large enough to keep a GPU busy, and its input shapes."""

    sample: str
    sizes: dict[str, int]
    shapes: dict[str, Any]
    tolerance: float = 1e-3


CASES = [
    Case(
        "transformer",
        {"layers": 4, "hidden": 256, "heads": 8, "positions": 256},
        {"input_ids": [8, 128], "attention_mask": [8, 128]},
    ),
    Case("cnn", {"width": 64, "size": 64, "blocks": 6}, {"image": [16, 3, 64, 64]}),
    # A difference of one quantization step is accepted.
    Case("quantized", {"width": 64}, {"image": [16, 3, 16, 16]}, tolerance=3e-2),
    Case("control_flow", {}, {"x": [64, 8], "n": {"shape": [], "gen": {"kind": "const", "value": 8}}}),
    Case("functions", {}, {"x": [16, 64, 16]}),
]


def relative_error(expected: list[np.ndarray], got: list[np.ndarray]) -> float:
    """The largest absolute difference, each output relative to its own largest value."""
    errors = [0.0]
    for a, b in zip(expected, got, strict=True):
        if a.shape != b.shape or not np.isfinite(b).all():
            return float("inf")
        errors.append(float(np.abs(a - b).max(initial=0.0) / max(np.abs(a).max(initial=0.0), 1e-6)))
    return max(errors)


def check(case: Case, device: Device, scratch: Path) -> dict[str, Any]:
    """Build, optimize and measure one model."""
    from zoo import SAMPLES

    sample = SAMPLES[case.sample]
    original, optimized = scratch / f"{case.sample}.onnx", scratch / f"{case.sample}.opt.onnx"
    original.write_bytes(sample.build(**case.sizes).SerializeToString(deterministic=True))
    outcome = measured_tools.graphopt_tool("--no-verify").run(original, optimized)
    if outcome.status != 0:
        return {"model": case.sample, "verdict": f"graphopt failed: {outcome.message}"}

    entry: Entry = {"inputs": sample.inputs, "shape_sets": [case.shapes]}
    feeds = make_feeds(entry, 0)
    expected = session.run(session.create(original), feeds)
    models = {"original": original, "optimized": optimized}
    setup = Setup(feeds, output_shapes(expected), device, provider_options={"use_tf32": "1"})
    checked = setup.eager(use_tf32="0")
    footprints = {name: footprint(path, setup, checked, processes=1) for name, path in models.items()}
    errors = {name: relative_error(expected, found.outputs) for name, found in footprints.items()}
    timing = compare_speed(models, setup, LIMITS)
    compared = timing.speeds["optimized"].comparison
    assert compared is not None
    return {
        "model": case.sample,
        "nodes": {name: measured_models.count_nodes(path) for name, path in models.items()},
        "error": errors,
        "milliseconds": {name: speed.p50 for name, speed in timing.speeds.items()},
        "ratio": compared.ratio,
        "spread": [compared.spread.low, compared.spread.high],
        "conclusion": compared.conclusion,
        "band": [timing.band.low, timing.band.high],
        "placement": {
            name: {**found.placement.nodes, "copies": found.placement.copies}
            for name, found in footprints.items()
        },
        "verdict": "ok" if max(errors.values()) <= case.tolerance else "wrong",
    }


def table(results: list[dict[str, Any]]) -> str:
    """One row per model."""
    rows: list[list[object]] = []
    for result in results:
        if "ratio" not in result:
            rows.append([result["model"], *["–"] * 7, result["verdict"]])
            continue
        pairs = [
            f"{before} → {after}"
            for before, after in (
                result["nodes"].values(),
                (f"{error:.0e}" for error in result["error"].values()),
                (f"{time:.3f}" for time in result["milliseconds"].values()),
                (place.get("CPU", 0) for place in result["placement"].values()),
                (place["copies"] for place in result["placement"].values()),
            )
        ]
        low, high = result["band"]
        rows.append(
            [
                result["model"],
                *pairs[:3],
                f"{result['ratio']:.2f}, {result['conclusion']}",
                f"{low:.2f} … {high:.2f}",
                *pairs[3:],
                result["verdict"],
            ]
        )
    header = ["model", "nodes", "error", "ms", "ratio", "A/A", "nodes on the CPU", "copies", "verdict"]
    return doc_tables.markdown_table(header, rows)


def gpu_name() -> str:
    """The names of the GPU and its driver, from nvidia-smi."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return "GPU of unknown name"
    query = [tool, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    lines = subprocess.run(query, capture_output=True, text=True, check=False).stdout.splitlines()
    name, _, driver = (lines[0] if lines else "GPU of unknown name").partition(", ")
    return f"{name}, driver {driver}" if driver else name


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N, or cpu for a rehearsal")
    parser.add_argument("--only", nargs="*", metavar="NAME", help="only these samples")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results as JSON")
    parser.add_argument(
        "--docs", type=Path, action="append", default=[], metavar="FILE", help="put the table into this page"
    )
    options = parser.parse_args()
    try:
        device, _note = choose(options.device)
    except RuntimeFailure as failure:
        print(f"gpu-check: {failure}", file=sys.stderr)
        return int(failure.status)

    sys.path.insert(0, str(measured_tools.ROOT / "samples"))
    begin, results = time.monotonic(), []
    with tempfile.TemporaryDirectory() as scratch:
        for case in CASES:
            if options.only and case.sample not in options.only:
                continue
            if time.monotonic() - begin > BUDGET:
                results.append({"model": case.sample, "verdict": "not reached in time"})
                continue
            print(f"gpu-check: {case.sample} …", file=sys.stderr, flush=True)
            results.append(check(case, device, Path(scratch)))
    where = "CPU" if device == CPU else gpu_name()
    facts = {"device": where, "onnxruntime": ort.__version__, "seconds": round(time.monotonic() - begin, 1)}
    text = (
        f"{table(results)}\n\nOn {where}; onnxruntime {ort.__version__}; error with TF32 off, ms with it on."
    )
    doc_tables.publish(options, "gpu-check", text, facts | {"models": results})
    return int(any(result["verdict"] != "ok" for result in results))


if __name__ == "__main__":
    sys.exit(main())
