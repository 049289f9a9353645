"""Measure the pass `layout` on CPUs: Transposes and CPU time of one thread, relative to the model without it.

    python -m benchmarks.layout built
    python -m benchmarks.layout models DIR
    python -m benchmarks.layout convolutions

`built` measures networks as exporters of channels-last frameworks write them, with Transposes around each
convolution, `models` the models of DIR that the pass changes after -O3, and `convolutions` quantized
convolutions with the channels last and first. In each of several fresh processes, default sessions of both
models, and a second session of the first (A/A), run alternately in a new order in each round.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks import doc_tables, measured_models
from benchmarks.inputs import make_feeds
from benchmarks.measured_tools import ROOT
from benchmarks.never_slower import ORIGINAL, TWIN, ratios_of
from graphopt import ir
from graphopt.api import context_for, load_model
from graphopt.passes.pipeline import Pipeline
from graphopt.passes.pipelines import registry

helper = onnx.helper
FLOAT = onnx.TensorProto.FLOAT
_FIRST, _LAST = [0, 3, 1, 2], [0, 2, 3, 1]


class Network:
    """A network on images with the channels last, whose convolutions have them first."""

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.random = np.random.default_rng(0)

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = f"{self.prefix}v{len(self.nodes)}"
        self.nodes.append(
            helper.make_node(op, list(inputs), [name], name=f"{self.prefix}n{len(self.nodes)}", **attributes)
        )
        return name

    def constant(self, array: np.ndarray) -> str:
        name = f"{self.prefix}c{len(self.constants)}"
        self.constants.append(onnx.numpy_helper.from_array(array, name))
        return name

    def weights(self, *shape: int) -> str:
        scale = float(np.prod(shape[1:])) ** -0.5
        return self.constant((scale * self.random.standard_normal(shape)).astype(np.float32))

    def convolved(
        self, x: str, read: int, made: int, kernel: int = 1, stride: int = 1, group: int = 1
    ) -> str:
        """Transpose, Conv, Transpose, then the bias with the channels last."""
        w = self.weights(made, read // group, kernel, kernel)
        image = self.add("Transpose", x, perm=_FIRST)
        y = self.add("Conv", image, w, group=group, strides=[stride, stride], auto_pad="SAME_UPPER")
        return self.add("Add", self.add("Transpose", y, perm=_LAST), self.weights(made))

    def relu6(self, x: str) -> str:
        low, high = (self.constant(np.array(bound, np.float32)) for bound in (0, 6))
        return self.add("Clip", x, low, high)

    def model(self, y: str, size: int) -> onnx.ModelProto:
        x = helper.make_tensor_value_info("x", FLOAT, [1, size, size, 3])
        out = helper.make_tensor_value_info(y, FLOAT, None)
        graph = helper.make_graph(self.nodes, "network", [x], [out], self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def mobile_network() -> onnx.ModelProto:
    """Inverted residuals with squeeze and excitation, as in MobileNetV3."""
    net = Network()
    x = net.relu6(net.convolved("x", 3, 16, 3, stride=2))
    read = 16
    for made, stride in ((24, 2), (24, 1), (40, 2), (40, 1), (80, 2), (80, 1), (112, 1), (112, 1)):
        wide = 4 * read
        y = net.relu6(net.convolved(x, read, wide))
        y = net.relu6(net.convolved(y, wide, wide, 3, stride=stride, group=wide))
        mean = net.add("ReduceMean", y, axes=[1, 2], keepdims=1)
        gate = net.add("Relu", net.convolved(mean, wide, wide // 4))
        y = net.add("Mul", y, net.add("HardSigmoid", net.convolved(gate, wide // 4, wide)))
        y = net.convolved(y, wide, made)
        x = net.add("Add", x, y) if read == made and stride == 1 else y
        read = made
    pooled = net.add("ReduceMean", x, axes=[1, 2], keepdims=0)
    return net.model(net.add("Softmax", net.add("MatMul", pooled, net.weights(read, 100)), axis=-1), 128)


def dense_network() -> onnx.ModelProto:
    """Concats of all earlier results, splits of channels, nearest upsampling and a softmax over channels."""
    net = Network()
    x = net.add("Relu", net.convolved("x", 3, 32, 3, stride=2))
    skips, width = [], 32
    for _ in range(3):
        for _ in range(3):
            half = net.constant(np.array([width // 2, width - width // 2], np.int64))
            name = f"s{len(net.nodes)}"
            net.nodes.append(helper.make_node("Split", [x, half], [f"{name}a", f"{name}b"], axis=3))
            y = net.add("Relu", net.convolved(f"{name}a", width // 2, 16, 3))
            x = net.add("Concat", x, y, f"{name}b", axis=3)
            width += 16 + width - width // 2
            x, width = net.add("Relu", net.convolved(x, width, 48)), 48
        skips.append(x)
        x = net.add("Relu", net.convolved(x, 48, 48, 3, stride=2))
    for skip in reversed(skips):
        scales = net.constant(np.array([1, 2, 2, 1], np.float32))
        x = net.add(
            "Resize",
            x,
            "",
            scales,
            mode="nearest",
            coordinate_transformation_mode="asymmetric",
            nearest_mode="floor",
        )
        x = net.add("Relu", net.convolved(net.add("Concat", x, skip, axis=3), 96, 48, 3))
    return net.model(net.add("Softmax", net.convolved(x, 48, 8), axis=-1), 128)


def recurrent_network() -> onnx.ModelProto:
    """A convolutional recurrence whose state has the channels last."""
    net, step = Network(), Network("l")
    x = net.add("Relu", net.convolved("x", 3, 32, 3, stride=2))
    gate = step.add("Sigmoid", step.convolved("state", 32, 32, 3))
    new = step.add("Add", step.add("Mul", gate, "state"), x)
    go = step.add("Identity", "go_on")
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        step.nodes,
        "step",
        [
            info("i", onnx.TensorProto.INT64, []),
            info("go_on", onnx.TensorProto.BOOL, []),
            info("state", FLOAT, [1, 64, 64, 32]),
        ],
        [info(go, onnx.TensorProto.BOOL, []), info(new, FLOAT, [1, 64, 64, 32])],
        step.constants,
    )
    trips = net.constant(np.array(12, np.int64))
    return net.model(net.add("Relu", net.convolved(net.add("Loop", trips, "", x, body=body), 32, 16, 3)), 128)


BUILT = {"mobile": mobile_network, "dense": dense_network, "recurrent": recurrent_network}


def optimized(model: ir.Model, text: str) -> ir.Model:
    """``model``, changed in place by a pipeline."""
    Pipeline.parse(text, registry()).run(model, context_for(model))
    return model


def transposes(model: ir.Model) -> int:
    return sum(node.op_type == "Transpose" for graph in ir.graphs_of(model) for node in graph)


def measure(
    paths: Mapping[str, str], feeds: Mapping[str, np.ndarray], options: argparse.Namespace
) -> tuple[dict[str, float], str]:
    """The median ratios over fresh processes, and the range of A/A."""
    found = []
    with tempfile.TemporaryDirectory() as scratch:
        np.savez(Path(scratch) / "feeds.npz", **dict(feeds))  # type: ignore[arg-type]
        for seed in range(options.processes):
            request = {
                "paths": dict(paths),
                "feeds": f"{scratch}/feeds.npz",
                "seconds": options.seconds,
                "seed": seed,
            }
            done = subprocess.run(
                [sys.executable, "-m", "benchmarks.layout", "--worker"],
                input=json.dumps(request), cwd=ROOT, capture_output=True, text=True, check=True,
            )  # fmt: skip
            found.append(json.loads(done.stdout.splitlines()[-1]))
    twins = [process[TWIN] for process in found]
    medians = {
        name: statistics.median(process[name] for process in found) for name in found[0] if name != TWIN
    }
    return medians, f"{min(twins):.3f} … {max(twins):.3f}"


def built_rows(options: argparse.Namespace, scratch: Path) -> Iterator[list[str]]:
    for name, build in BUILT.items():
        proto = build()
        feeds = {"x": np.random.default_rng(0).standard_normal((1, 128, 128, 3)).astype(np.float32)}
        counts: list[str] = []
        paths: dict[str, str] = {}
        for label, text in ((ORIGINAL, ""), ("-O3", "O3"), ("-O3, layout", "O3,layout,O3")):
            model = optimized(ir.from_proto(proto), text)
            counts.append(str(transposes(model)))
            paths[label] = str(scratch / f"{name}-{len(paths)}.onnx")
            Path(paths[label]).write_bytes(ir.to_bytes(model))
        ratios, twins = measure(paths, feeds, options)
        yield [name, *counts, *(f"{ratios[label]:.3f}" for label in paths if label != ORIGINAL), twins]


def model_rows(options: argparse.Namespace, scratch: Path) -> Iterator[list[str]]:
    """Rows of the models that the pass changes after -O3."""
    for case in measured_models.cases(options, scratch):
        model = optimized(load_model(case.path), "O3")
        before = transposes(model)
        base, changed = scratch / f"{case.name}-0.onnx", scratch / f"{case.name}-1.onnx"
        base.write_bytes(ir.to_bytes(model))
        cx = context_for(model)
        Pipeline.parse("layout{convolutions=false}", registry()).run(model, cx)
        if not cx.actions:
            continue
        optimized(model, "O3")
        changed.write_bytes(ir.to_bytes(model))
        for shapes in range(len(case.entry["shape_sets"])):
            feeds = make_feeds(case.entry, shapes)
            ratios, twins = measure({ORIGINAL: str(base), "layout": str(changed)}, feeds, options)
            yield [
                case.name,
                str(shapes),
                str(before),
                str(transposes(model)),
                f"{ratios['layout']:.3f}",
                twins,
            ]


#: Image size, channels read and made, kernel, and groups of the convolutions.
CONVOLUTIONS = (
    (56, 64, 64, 3, 1),
    (28, 128, 128, 3, 1),
    (14, 256, 256, 1, 1),
    (56, 96, 96, 3, 96),
    (112, 3, 32, 3, 1),
)


def convolution_rows(options: argparse.Namespace, scratch: Path) -> Iterator[list[str]]:
    """Rows of chains of four quantized convolutions."""
    for size, read, made, kernel, group in CONVOLUTIONS:
        random = np.random.default_rng(0)
        constants = [
            onnx.numpy_helper.from_array(np.array(0.02, np.float32), "s"),
            onnx.numpy_helper.from_array(np.array(128, np.uint8), "z"),
        ]
        nodes, x, channels = [], "x", read
        for index in range(4):
            groups = group if channels == made else 1
            weights = random.integers(100, 156, (made, channels // groups, kernel, kernel)).astype(np.uint8)
            constants.append(onnx.numpy_helper.from_array(weights, f"w{index}"))
            nodes.append(
                helper.make_node(
                    "QLinearConv", [x, "s", "z", f"w{index}", "s", "z", "s", "z"], [f"y{index}"],
                    group=groups, pads=[kernel // 2] * 4,
                )
            )  # fmt: skip
            x, channels = f"y{index}", made
        info, byte = helper.make_tensor_value_info, onnx.TensorProto.UINT8
        graph = helper.make_graph(
            nodes, "chain", [info("x", byte, [1, read, size, size])], [info(x, byte, None)], constants
        )
        proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        base, changed = scratch / "first.onnx", scratch / "last.onnx"
        base.write_bytes(proto.SerializeToString())
        changed.write_bytes(ir.to_bytes(optimized(ir.from_proto(proto), "layout{force}")))
        feeds = {"x": random.integers(0, 255, (1, read, size, size)).astype(np.uint8)}
        ratios, twins = measure({ORIGINAL: str(base), "last": str(changed)}, feeds, options)
        yield [
            f"{size} × {size}",
            str(read),
            str(made),
            f"{kernel} × {kernel}",
            str(group),
            f"{ratios['last']:.3f}",
            twins,
        ]


TABLES = {
    "built": (
        ["network", "Transposes", "-O3", "and layout", "-O3: CPU time", "and layout: CPU time", "A/A"],
        built_rows,
    ),
    "models": (["model", "shapes", "Transposes after -O3", "after layout", "CPU time", "A/A"], model_rows),
    "convolutions": (
        ["image", "channels in", "channels out", "kernel", "groups", "channels last: CPU time", "A/A"],
        convolution_rows,
    ),
}


def main() -> int:
    if sys.argv[1:] == ["--worker"]:
        request = json.load(sys.stdin)
        with np.load(request["feeds"]) as archive:
            feeds = {name: archive[name] for name in archive.files}
        print(json.dumps(ratios_of(request["paths"], feeds, request["seconds"], request["seed"])))
        return 0
    kind = sys.argv.pop(1) if len(sys.argv) > 1 else "built"
    if kind not in TABLES:
        raise SystemExit(f"{kind!r} is none of {', '.join(TABLES)}")
    parser = measured_models.arguments(__doc__ or "")
    parser.add_argument("--processes", type=int, default=5, help="fresh processes (default: 5)")
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds per process (default: 2)")
    options = parser.parse_args()
    header, rows_of = TABLES[kind]
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for row in rows_of(options, Path(scratch)):
            rows.append(row)
            print(" ".join(row), file=sys.stderr, flush=True)
    print(doc_tables.markdown_table(header, rows))
    print(f"\nRatios of CPU time, one thread, on {doc_tables.machine()}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
