"""CPU time and peak memory of whole processes at their defaults, verification included, against peers.

    python -m benchmarks.default_cost               on the samples
    python -m benchmarks.default_cost DIR           on a folder of models
    python -m benchmarks.default_cost DIR --sized   also on random models like ResNet-50 and BERT-base
    python -m benchmarks.default_cost DIR --counts 5

CPU time is that of all processes of a tool: load on the machine changes it less than wall time. Tools run
alternately, in a new order in each round. graphopt runs twice per round, as if it were two tools: the spread
of the ratios between those two (5th to 95th percentile over the models) is the band within which no
difference is claimed. Peak memory is that of the largest process.

With --counts N, graphopt verifies each model N times without other load, and N times beside two busy
processes for each core. The numbers of comparisons must agree.
"""

from __future__ import annotations

import compileall
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks import doc_tables, measured_models, measured_tools
from benchmarks.inputs import entry_of
from benchmarks.measured_models import Case
from benchmarks.measured_tools import GRAPHOPT, ROOT, Tool, Usage
from graphopt.timing.ratios import band_of, turn_order

AGAIN = "graphopt again"
PEERS = ("onnxslim", "onnxsim")
#: Blocks, and channels inside them, of the stages of ResNet-50.
_STAGES = ((3, 64), (4, 128), (6, 256), (3, 512))


def resnet50() -> onnx.ModelProto:
    """ResNet-50 with random weights, as exported with separate batch normalizations (102 MB)."""
    random, nodes, weights = np.random.default_rng(0), [], []

    def weight(name: str, *shape: int, scale: float = 0.05, shift: float = 0.0) -> str:
        array = (random.standard_normal(shape, np.float32) * scale + shift).astype(np.float32)
        weights.append(numpy_helper.from_array(np.abs(array) if shift else array, name))
        return name

    def conv(x: str, name: str, sizes: tuple[int, int], kernel: int, stride: int, relu: bool) -> str:
        channels, outputs = sizes
        kernels = weight(f"{name}.weight", outputs, channels, kernel, kernel)
        pads = [kernel // 2] * 4
        nodes.append(
            helper.make_node("Conv", [x, kernels], [f"{name}.conv"], strides=[stride, stride], pads=pads)
        )
        parts = [weight(f"{name}.{part}", outputs, shift=1.0) for part in ("scale", "b", "mean", "variance")]
        nodes.append(helper.make_node("BatchNormalization", [f"{name}.conv", *parts], [f"{name}.bn"]))
        if relu:
            nodes.append(helper.make_node("Relu", [f"{name}.bn"], [f"{name}.relu"]))
        return f"{name}.relu" if relu else f"{name}.bn"

    x = conv("image", "stem", (3, 64), 7, 2, True)
    nodes.append(
        helper.make_node("MaxPool", [x], ["pool"], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    )
    x, width = "pool", 64
    for stage, (blocks, inner) in enumerate(_STAGES):
        for block in range(blocks):
            name, stride, outer = f"s{stage}.{block}", 2 if stage and not block else 1, 4 * inner
            y = conv(x, f"{name}.a", (width, inner), 1, 1, True)
            y = conv(y, f"{name}.b", (inner, inner), 3, stride, True)
            y = conv(y, f"{name}.c", (inner, outer), 1, 1, False)
            if not block:
                x = conv(x, f"{name}.skip", (width, outer), 1, stride, False)
            nodes.append(helper.make_node("Add", [y, x], [f"{name}.sum"]))
            nodes.append(helper.make_node("Relu", [f"{name}.sum"], [f"{name}.out"]))
            x, width = f"{name}.out", outer
    nodes.append(helper.make_node("GlobalAveragePool", [x], ["average"]))
    nodes.append(helper.make_node("Flatten", ["average"], ["features"]))
    head = [weight("head.weight", 1000, width), weight("head.bias", 1000)]
    nodes.append(helper.make_node("Gemm", ["features", *head], ["logits"], transB=1))
    graph = helper.make_graph(
        nodes,
        "resnet50",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, 224, 224])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 1000])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def bert_base() -> onnx.ModelProto:
    """The sample transformer with the layers of BERT-base (340 MB), and a short vocabulary."""
    sys.path.insert(0, str(ROOT / "samples"))
    from zoo.transformer import transformer

    model: onnx.ModelProto = transformer(layers=12, hidden=768, heads=12, positions=512)
    return model


def sized_models(folder: Path) -> list[Case]:
    """The random models, saved to ``folder``."""
    found = []
    for build in (resnet50, bert_base):
        path = folder / f"{build.__name__}.onnx"
        onnx.save(build(), path)
        found.append(Case(path, entry_of(path)))
    return found


def measure(case: Case, tools: list[Tool], rounds: int, scratch: Path) -> dict[str, list[Usage]]:
    """Resource usage of each run by tool; tools that fail on the model are omitted."""
    by_name = {tool.name: tool for tool in tools}
    found: dict[str, list[Usage]] = {name: [] for name in by_name}
    for turn in range(rounds):
        for name in turn_order(list(by_name), turn):
            target = scratch / "result.onnx"
            target.unlink(missing_ok=True)
            usage = measured_tools.metered(by_name[name], case.path, target)
            if usage.status or not target.is_file():
                print(f"  {name} failed: {usage.message}", file=sys.stderr)
                del by_name[name], found[name]
            else:
                found[name].append(usage)
    return found


@contextlib.contextmanager
def loaded(processes: int) -> Iterator[None]:
    """Keep the machine busy."""
    busy = [subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def comparisons(case: Case, runs: int, scratch: Path) -> list[int]:
    """The numbers of comparisons in ``runs`` runs of graphopt."""
    counts, report = [], scratch / "report.json"
    for _ in range(runs):
        tool = measured_tools.graphopt_tool("--report", str(report))
        outcome = tool.run(case.path, scratch / "result.onnx")
        if outcome.status:
            raise RuntimeError(f"{case.name}: {outcome.message}")
        counts.append(len(json.loads(report.read_text())["verification"]["rows"]))
    return counts


def ratios(models: list[dict[str, Any]], name: str, key: str = "cpu") -> list[float]:
    """graphopt's median over that of ``name``, for each model on which both ran."""
    return [
        model[key][GRAPHOPT] / model[key][name]
        for model in models
        if GRAPHOPT in model[key] and name in model[key]
    ]


def table(models: list[dict[str, Any]], peers: list[str], rounds: int) -> str:
    """Medians, one row per model; below, the geometric means and the largest of the ratios, and the band."""
    names = (GRAPHOPT, *peers)
    rows: list[list[object]] = []
    for model in models:
        cpu, peak = model["cpu"], model["peak"]
        cells = [f"{cpu[name]:.2f} ({peak[name] / 1e6:.0f})" if name in cpu else "failed" for name in names]
        one = ratios([model], peers[0]) if peers else []
        rows.append([model["model"], *cells, *(f"{ratio:.2f}" for ratio in one), _counts(model)])
    header = ["CPU s (peak MB)", *names, *(["ratio"] if peers else []), "comparisons"]
    lines = [doc_tables.markdown_table(header, rows), ""]
    for peer in peers:
        for key, what in (("cpu", "CPU time"), ("peak", "peak memory")):
            if found := ratios(models, peer, key):
                mean = doc_tables.geometric_mean(found)
                lines.append(f"- {what}, graphopt / {peer}: {mean:.2f} (mean), {max(found):.2f} (largest)")
    if found := ratios(models, AGAIN):
        band = band_of(found)
        lines.append(f"- graphopt / graphopt: {band.low:.2f} … {band.high:.2f} (band of the measurement)")
    return "\n".join([*lines, "", f"Medians of {rounds} rounds on {doc_tables.machine()}."])


def _counts(model: dict[str, Any]) -> str:
    return ", ".join(map(str, dict.fromkeys(model["comparisons"]))) or "–"


def main() -> int:
    parser = measured_models.arguments(__doc__ or "")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each tool on each model (default: 5)")
    parser.add_argument("--sized", action="store_true", help="also generate models of well-known sizes")
    parser.add_argument("--counts", type=int, default=0, metavar="N", help="compare numbers of comparisons")
    options = parser.parse_args()

    os.environ["GRAPHOPT_CACHE"] = "false"
    compileall.compile_dir(ROOT / "graphopt", quiet=1)  # as installed packages are
    found = {tool.name: tool for tool in measured_tools.peer_tools(options.peer_python)}
    peers = [name for name in PEERS if name in found]
    own = measured_tools.graphopt_tool()
    tools = [own, *(found[name] for name in peers), Tool(AGAIN, own.command, own.before_target)]
    models: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch_name:
        scratch = Path(scratch_name)
        chosen = measured_models.cases(options, scratch) + (sized_models(scratch) if options.sized else [])
        for case in measured_models.progress(chosen):
            usages = measure(case, tools, options.rounds, scratch)
            counts = comparisons(case, options.counts, scratch)
            with loaded(2 * (os.cpu_count() or 1) if options.counts else 0):
                counts += comparisons(case, options.counts, scratch)
            models.append(
                {
                    "model": case.name,
                    "cpu": {k: statistics.median(u.cpu_seconds for u in us) for k, us in usages.items()},
                    "peak": {k: statistics.median(u.peak_bytes for u in us) for k, us in usages.items()},
                    "comparisons": counts,
                }
            )
    text = table(models, peers, options.rounds)
    facts = {"machine": doc_tables.machine(), "versions": doc_tables.versions(options.peer_python)}
    doc_tables.publish(options, "default-cost", text, facts | {"rounds": options.rounds, "models": models})
    return int(any(len(set(model["comparisons"])) > 1 for model in models) or not all_run(models))


def all_run(models: list[dict[str, Any]]) -> bool:
    """Whether graphopt ran on all models."""
    return all(GRAPHOPT in model["cpu"] for model in models)


if __name__ == "__main__":
    sys.exit(main())
