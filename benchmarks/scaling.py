"""Growth of process time with model size: graphopt without verification, and onnxslim.

    python -m benchmarks.scaling                      transformers of 5,000, 8,000, 50,000 nodes; two chains
    python -m benchmarks.scaling --nodes 1000 2000

The models are generated, with negligible weights: the sample transformer with more layers, in the form of
TorchScript (a chain of Shape, Gather, Unsqueeze, Concat and Reshape where heads are split or merged), a chain
that no tool can shorten, and a chain on a constant, which folds. Tools run alternately. CPU seconds depend
less on other load than wall seconds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from itertools import cycle, islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks import doc_tables, measured_models, measured_tools
from benchmarks.measured_tools import GRAPHOPT, Tool, Usage
from graphopt.timing.ratios import turn_order

PEER = "onnxslim"
_WIDTH = 8


def transformer(nodes: int) -> onnx.ModelProto:
    """The sample transformer with a number of layers that yields about `nodes` nodes."""
    sys.path.insert(0, str(measured_tools.ROOT / "samples"))
    from zoo.transformer import transformer as build

    model: onnx.ModelProto
    few, more = (_count(build(layers, hidden=_WIDTH, heads=2)) for layers in (1, 2))
    layers = max(1, round((nodes - few) / (more - few)) + 1)
    model = build(layers, hidden=_WIDTH, heads=2)
    return model


def chain(nodes: int) -> onnx.ModelProto:
    """A chain of alternating Add, Mul and Relu, none of which can be merged or removed."""
    return _chain(nodes, "x")


def folding_chain(nodes: int) -> onnx.ModelProto:
    """The same chain on a constant, added to the input: one node remains."""
    return _chain(nodes - 1, "offset")


def _chain(nodes: int, start: str) -> onnx.ModelProto:
    steps = (["Add", "offset"], ["Mul", "scale"], ["Relu"])
    made, value = [], start
    for i, (op_type, *constants) in enumerate(islice(cycle(steps), nodes)):
        made.append(helper.make_node(op_type, [value, *constants], [f"value_{i}"]))
        value = f"value_{i}"
    if start == "x":
        made[-1].output[0] = "y"
    else:
        made.append(helper.make_node("Add", ["x", value], ["y"]))
    arrays = {"offset": np.arange(1, 1 + _WIDTH), "scale": np.linspace(0.9, 1.1, _WIDTH)}
    graph = helper.make_graph(
        made,
        "chain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", _WIDTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", _WIDTH])],
        [numpy_helper.from_array(array.astype(np.float32), name) for name, array in arrays.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


BUILDERS: dict[str, Callable[[int], onnx.ModelProto]] = {
    "transformer": transformer,
    "chain": chain,
    "folding_chain": folding_chain,
}


def _medians(usages: dict[str, list[Usage]], read: Callable[[Usage], float]) -> dict[str, float]:
    return {tool: statistics.median(map(read, runs)) for tool, runs in usages.items()}


def _count(model: onnx.ModelProto) -> int:
    return sum(node.op_type != "Constant" for node in model.graph.node)


def _result(source: Path, tool: str) -> Path:
    return source.with_name(f"{tool}.result.onnx")


def measure(source: Path, tools: list[Tool], rounds: int) -> dict[str, list[Usage]]:
    """Resource usage of each run by tool; empty for a tool that fails."""
    by_name = {tool.name: tool for tool in tools}
    found: dict[str, list[Usage]] = {name: [] for name in by_name}
    for turn in range(rounds):
        for name in turn_order(list(by_name), turn):
            usage = measured_tools.metered(by_name[name], source, _result(source, name))
            if usage.status:
                print(f"  {name} failed: {usage.message}", file=sys.stderr)
                del by_name[name], found[name]
                continue
            found[name].append(usage)
    return found


def table(models: list[dict[str, Any]], rounds: int) -> str:
    """Medians of wall and CPU seconds, one row per model, and the growth from one size to the next."""
    rows = [
        [
            model["model"],
            f"{model['nodes']:,}",
            f"{model['left']:,}" if model["left"] is not None else "–",
            *(_cell(model, tool) for tool in (GRAPHOPT, PEER)),
            _ratio(model["cpu"].get(GRAPHOPT), model["cpu"].get(PEER)),
        ]
        for model in models
    ]
    header = ["wall s (CPU s)", "nodes", "left", GRAPHOPT, PEER, "CPU ratio"]
    lines = [doc_tables.markdown_table(header, rows), ""]
    transformers = [model for model in models if model["model"] == "transformer"]
    for small, large in pairwise(transformers):
        grown = large["nodes"] / small["nodes"]
        times = _ratio(large["cpu"].get(GRAPHOPT), small["cpu"].get(GRAPHOPT))
        lines.append(
            f"- {small['nodes']:,} → {large['nodes']:,} nodes ({grown:.1f} ×): "
            f"graphopt takes {times} × the time"
        )
    lines += ["", f"Medians of {rounds} rounds on {doc_tables.machine()}."]
    return "\n".join(lines)


def _cell(model: dict[str, Any], tool: str) -> str:
    return f"{model['wall'][tool]:.2f} ({model['cpu'][tool]:.2f})" if tool in model["wall"] else "–"


def _ratio(a: float | None, b: float | None) -> str:
    return f"{a / b:.2f}" if a is not None and b is not None else "–"


def arguments() -> argparse.Namespace:
    parser = measured_models.arguments(__doc__ or "", models=False)
    parser.add_argument("--nodes", type=int, nargs="+", default=[5000, 8000, 50000], metavar="N")
    parser.add_argument("--chain", type=int, default=50000, metavar="N", help="nodes of the chains")
    parser.add_argument(
        "--peer-limit",
        type=int,
        default=8000,
        metavar="N",
        help="largest models for peers, in nodes (default: 8000)",
    )
    parser.add_argument("--rounds", type=int, default=3, help="runs of each tool on each model (default: 3)")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    peers = [tool for tool in measured_tools.peer_tools(options.peer_python) if tool.name == PEER]
    own = measured_tools.graphopt_tool("--no-verify")
    wanted = [("transformer", nodes) for nodes in sorted(options.nodes)]
    wanted += [(name, options.chain) for name in BUILDERS if name != "transformer"]
    models: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "model.onnx"
        for name, size in wanted:
            print(f"{name}, {size:,} nodes", file=sys.stderr, flush=True)
            model = BUILDERS[name](size)
            onnx.save(model, source)
            usages = measure(source, [own, *(peers if size <= options.peer_limit else [])], options.rounds)
            models.append(
                {
                    "model": name,
                    "nodes": _count(model),
                    "left": _count(onnx.load(_result(source, GRAPHOPT))) if GRAPHOPT in usages else None,
                    "wall": {tool: statistics.median(u.seconds for u in us) for tool, us in usages.items()},
                    "cpu": {
                        tool: statistics.median(u.cpu_seconds for u in us) for tool, us in usages.items()
                    },
                    "runs": {tool: [asdict(usage) for usage in us] for tool, us in usages.items()},
                }
            )
    facts = {"machine": doc_tables.machine(), "versions": doc_tables.versions(options.peer_python)}
    doc_tables.publish(options, "scaling", table(models, options.rounds), facts | {"models": models})
    return int(any(GRAPHOPT not in model["cpu"] for model in models))


if __name__ == "__main__":
    sys.exit(main())
