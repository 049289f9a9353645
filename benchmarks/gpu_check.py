"""The samples, enlarged, on the CUDA provider: is what graphopt makes of them right there, and faster?

    make gpu-check                                  (python3 benchmarks/gpu_check.py from the source tree)
    python3 benchmarks/gpu_check.py --device cpu    rehearses it without a GPU

For each model: the largest error of the original and of the optimized model relative to the CPU's result,
with TF32 off; the latency of both with inputs and outputs bound on the device, at onnxruntime's defaults; how
many nodes run on the CPU and how many copies between CPU and device that takes. The original is measured
twice, as if it were two models: inside the band of those ratios (5th to 95th percentile) nothing is claimed.
Exits 1 where a result is wrong and 6 where CUDA can't be used.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from benchmarks import common
from benchmarks.inputs import Entry, Feeds, make_feeds
from graphopt.errors import RuntimeFailure
from graphopt.runtime.devices import CPU, Device, choose, quiet

# Seconds after which no further model is begun, and no further round on one model: the whole takes minutes.
BUDGET, BUDGET_OF_MODEL = 360, 40
ROUNDS, RUNS, WARM_UP = 30, 10, 20


@dataclass(frozen=True)
class Case:
    """A sample in a size that keeps a GPU busy, and the shapes to run it with."""

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
    # One step of quantization more or less is no fault.
    Case("quantized", {"width": 64}, {"image": [16, 3, 16, 16]}, tolerance=3e-2),
    Case("control_flow", {}, {"x": [64, 8], "n": {"shape": [], "gen": {"kind": "const", "value": 8}}}),
    Case("functions", {}, {"x": [16, 64, 16]}),
]


def session(model: Path, device: Device, *, tf32: bool, profile: Path | None = None) -> Any:
    """A session at onnxruntime's defaults that fails rather than fall back to the CPU."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    if profile:
        options.enable_profiling = True
        options.profile_file_prefix = str(profile)
    with quiet(ort):
        return ort.InferenceSession(model, options, providers=device.providers(tf32=tf32), enable_fallback=0)


def relative_error(expected: list[np.ndarray], got: list[np.ndarray]) -> float:
    """The largest absolute difference, each output relative to its own largest value."""
    errors = [0.0]
    for a, b in zip(expected, got, strict=True):
        if a.shape != b.shape or not np.isfinite(b).all():
            return float("inf")
        errors.append(float(np.abs(a - b).max(initial=0.0) / max(np.abs(a).max(initial=0.0), 1e-6)))
    return max(errors)


class Bound:
    """A session with all inputs and outputs on the device, ready to be timed."""

    def __init__(self, model: Path, device: Device, feeds: Feeds, expected: list[np.ndarray]) -> None:
        self.session = session(model, device, tf32=True)
        self.binding = self.session.io_binding()
        for name, value in feeds.items():
            bound = ort.OrtValue.ortvalue_from_numpy(value, device.kind, device.index)
            self.binding.bind_ortvalue_input(name, bound)
        for output, value in zip(self.session.get_outputs(), expected, strict=True):
            buffer = ort.OrtValue.ortvalue_from_shape_and_type(
                list(value.shape), value.dtype, device.kind, device.index
            )
            self.binding.bind_ortvalue_output(output.name, buffer)
        self.binding.synchronize_inputs()
        self.milliseconds(WARM_UP)

    def milliseconds(self, runs: int) -> float:
        """Mean time of a run; each waits for the device."""
        begin = time.perf_counter()
        for _ in range(runs):
            self.session.run_with_iobinding(self.binding)
        return (time.perf_counter() - begin) * 1e3 / runs


def latencies(models: dict[str, Path], device: Device, feeds: Feeds, expected: list[np.ndarray]) -> Any:
    """Mean milliseconds of each round, by model; the models take turns, in alternating order."""
    bound = {name: Bound(path, device, feeds, expected) for name, path in models.items()}
    times: dict[str, list[float]] = {name: [] for name in bound}
    begin = time.monotonic()
    for turn in range(ROUNDS):
        if time.monotonic() - begin > BUDGET_OF_MODEL:
            break
        for name in bound if turn % 2 == 0 else reversed(bound):
            times[name].append(bound[name].milliseconds(RUNS))
    return {name: np.array(rounds) for name, rounds in times.items()}


def placement(model: Path, device: Device, feeds: Feeds, scratch: Path) -> dict[str, int]:
    """How many nodes each provider took, and the copies that one run needs."""
    profiled = session(model, device, tf32=True, profile=scratch / "profile")
    counts: Counter[str] = Counter()
    for part in profiled.get_provider_graph_assignment_info():
        counts[part.ep_name.removesuffix("ExecutionProvider")] += len(part.get_nodes())
    profiled.run(None, feeds)
    events = json.loads(Path(profiled.end_profiling()).read_text(encoding="utf-8"))
    operators = [event.get("args", {}).get("op_name", "") for event in events if event.get("cat") == "Node"]
    counts["copies"] = sum(operator.startswith("Memcpy") for operator in operators)
    return dict(counts)


def check(case: Case, device: Device, scratch: Path) -> dict[str, Any]:
    """Build, optimize and measure one model."""
    from zoo import SAMPLES

    sample = SAMPLES[case.sample]
    original, optimized = scratch / f"{case.sample}.onnx", scratch / f"{case.sample}.opt.onnx"
    original.write_bytes(sample.build(**case.sizes).SerializeToString(deterministic=True))
    outcome = common.graphopt_tool("--no-verify").run(original, optimized)
    if outcome.status != 0:
        return {"model": case.sample, "verdict": f"graphopt failed: {outcome.message}"}

    entry: Entry = {"inputs": sample.inputs, "shape_sets": [case.shapes]}
    feeds = make_feeds(entry, 0)
    expected = session(original, CPU, tf32=False).run(None, feeds)
    models = {"original": original, "optimized": optimized}
    errors = {
        name: relative_error(expected, session(path, device, tf32=False).run(None, feeds))
        for name, path in models.items()
    }
    times = latencies({**models, "again": original}, device, feeds, expected)
    ratio = float(np.median(times["optimized"] / times["original"]))
    band = np.percentile(times["again"] / times["original"], [5, 95])
    return {
        "model": case.sample,
        "nodes": {name: common.count_nodes(path) for name, path in models.items()},
        "error": errors,
        "milliseconds": {name: float(np.median(times[name])) for name in models},
        "ratio": ratio,
        "band": [float(edge) for edge in band],
        "placement": {name: placement(path, device, feeds, scratch) for name, path in models.items()},
        "verdict": "ok" if max(errors.values()) <= case.tolerance else "wrong",
    }


def table(results: list[dict[str, Any]]) -> str:
    """One line a model."""
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
                f"{result['ratio']:.2f}",
                f"{low:.2f} … {high:.2f}",
                *pairs[3:],
                result["verdict"],
            ]
        )
    header = ["model", "nodes", "error", "ms", "ratio", "A/A", "nodes on the CPU", "copies", "verdict"]
    return common.markdown_table(header, rows)


def gpu_name() -> str:
    """What nvidia-smi calls the GPU and its driver."""
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

    sys.path.insert(0, str(common.ROOT / "samples"))
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
    common.publish(options, "gpu-check", text, facts | {"models": results})
    return int(any(result["verdict"] != "ok" for result in results))


if __name__ == "__main__":
    sys.exit(main())
