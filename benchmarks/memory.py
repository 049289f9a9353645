"""Peak memory of a process: graphopt without verification, and onnxslim.

    python -m benchmarks.memory               on the samples
    python -m benchmarks.memory DIR           on a folder of models
    python -m benchmarks.memory --large 3     on a generated model with 3 GB of external data

Every run is a fresh process; its peak is the resident set, libraries and mapped files included, as the system
reports it. With --large, it is anonymous memory: pages that are neither shared nor backed by a file, which a
machine without swap must provide. The large model is random, written to a temporary folder (`TMPDIR`) and
removed at the end.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from benchmarks import doc_tables, measured_models, measured_tools
from benchmarks.measured_tools import GRAPHOPT, Usage

PEER = "onnxslim"
_SIDE = 4096  # of a square weight: 64 MiB of float32


def large_model(folder: Path, gigabytes: float) -> Path:
    """Matrix products with `gigabytes` of weights in external data, and Identities to remove between them."""
    path, random = folder / "large.onnx", np.random.default_rng(0)
    nbytes = 4 * _SIDE**2
    nodes, weights, value = [], [], "x"
    with open(folder / "large.weights", "wb") as file:
        for i in range(max(1, round(gigabytes * 1e9 / nbytes))):
            weight = TensorProto(name=f"weight_{i}", data_type=TensorProto.FLOAT, dims=[_SIDE, _SIDE])
            weight.data_location = TensorProto.EXTERNAL
            for key, place in (("location", "large.weights"), ("offset", file.tell()), ("length", nbytes)):
                weight.external_data.add(key=key, value=str(place))
            file.write(random.random((_SIDE, _SIDE), np.float32).tobytes())
            weights.append(weight)
            nodes.append(helper.make_node("Identity", [value], [f"same_{i}"]))
            nodes.append(helper.make_node("MatMul", [f"same_{i}", weight.name], [f"product_{i}"]))
            nodes.append(helper.make_node("Relu", [f"product_{i}"], [f"state_{i}"]))
            value = f"state_{i}"
    nodes[-1].output[0] = "y"
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", _SIDE]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "large", ports[:1], ports[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def table(models: list[dict[str, Any]], peers: list[str]) -> str:
    """Peaks in MB, one row per model, and the largest ratio."""
    rows, ratios = [], []
    for model in models:
        peaks: dict[str, int] = model["peaks"]
        cells = [_megabytes(peaks[name]) if name in peaks else "failed" for name in (GRAPHOPT, *peers)]
        ratio = peaks[GRAPHOPT] / peaks[PEER] if GRAPHOPT in peaks and PEER in peaks else None
        ratios += [] if ratio is None else [ratio]
        rows.append([model["model"], model["file"], *cells, "–" if ratio is None else f"{ratio:.2f}"])
    lines = [doc_tables.markdown_table(["peak MB", "model", GRAPHOPT, *peers, "ratio"], rows), ""]
    if ratios:
        mean = doc_tables.geometric_mean(ratios)
        lines += [f"- graphopt / {PEER}: {mean:.2f} (geometric mean), {max(ratios):.2f} (largest)", ""]
    return "\n".join([*lines, f"On {doc_tables.machine()}."])


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.0f}"


def large_lines(usage: Usage, gigabytes: float) -> str:
    return (
        f"- {gigabytes:g} GB of external data: {_megabytes(usage.anonymous_bytes or 0)} MB of anonymous "
        f"memory, {_megabytes(usage.peak_bytes)} MB resident with mapped files, {usage.seconds:.1f} s "
        f"({usage.cpu_seconds:.1f} s CPU).\n\nOn {doc_tables.machine()}."
    )


def main() -> int:
    parser = measured_models.arguments(__doc__ or "")
    parser.add_argument(
        "--large", type=float, metavar="GB", help="use a generated model of this size instead"
    )
    options = parser.parse_args()

    own = measured_tools.graphopt_tool("--no-verify")
    facts = {"machine": doc_tables.machine(), "versions": doc_tables.versions(options.peer_python)}
    with tempfile.TemporaryDirectory() as scratch_name:
        scratch = Path(scratch_name)
        target = scratch / "result.onnx"
        if options.large:
            usage = measured_tools.metered(own, large_model(scratch, options.large), target, sample=True)
            if usage.status:
                sys.exit(f"graphopt failed: {usage.message}")
            text = large_lines(usage, options.large)
            doc_tables.publish(options, "memory-large", text, facts | {"large": usage.__dict__})
            return 0
        peers = [tool for tool in measured_tools.peer_tools(options.peer_python) if tool.name == PEER]
        models: list[dict[str, Any]] = []
        for case in measured_models.progress(measured_models.cases(options, scratch)):
            peaks: dict[str, int] = {}
            for tool in (own, *peers):
                usage = measured_tools.metered(tool, case.path, target)
                if usage.status:
                    print(f"  {tool.name} failed: {usage.message}", file=sys.stderr)
                else:
                    peaks[tool.name] = usage.peak_bytes
            size = f"{measured_models.size_on_disk(case.path) / 1e6:.1f}"
            models.append({"model": case.name, "file": size, "peaks": peaks})
    doc_tables.publish(
        options, "memory", table(models, [peer.name for peer in peers]), facts | {"models": models}
    )
    return int(any(GRAPHOPT not in model["peaks"] for model in models))


if __name__ == "__main__":
    sys.exit(main())
