"""Kernels of LSTM, GRU and RNN, compared with onnxruntime.

    python -m benchmarks.recurrences                             all shapes, one thread
    python -m benchmarks.recurrences --only GRU --threads 2
    python -m benchmarks.recurrences --docs docs/kernels.md

Each operator is timed alternately with the original and its twin, as in ``benchmarks.kernels``. Operations
are those of the products, two for a multiplication and an addition.
"""

from __future__ import annotations

import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from benchmarks.doc_tables import machine, markdown_table, publish, versions
from benchmarks.kernel_models.graph import Example
from benchmarks.kernels import NATIVE, ORIGINAL, TIMING_HEADER, measure, timing_cells
from benchmarks.native_models import natives
from benchmarks.race_options import race_arguments, thread_count

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


@dataclass(frozen=True)
class Shape:
    """A recurrent operator with constant weights and a bias."""

    op: str
    steps: int
    batch: int
    inputs: int
    hidden: int
    directions: int = 1

    @property
    def operations(self) -> int:
        """Operations of the products of a run."""
        each = GATES[self.op] * self.hidden * (self.inputs + self.hidden)
        return 2 * self.steps * self.batch * self.directions * each

    def __str__(self) -> str:
        both = ", both directions" if self.directions == 2 else ""
        return f"{self.op}, {self.steps} × {self.batch} × {self.inputs}, {self.hidden} units{both}"


#: Sizes of taggers, voice detectors, echo cancellers, recognizers of text and translators.
SHAPES = [
    *[
        Shape(op, *sizes)
        for op in GATES
        for sizes in (
            (50, 1, 96, 128, 2),
            (50, 1, 256, 128, 2),
            (20, 1, 128, 128),
            (1, 1, 128, 128),
            (200, 1, 128, 64, 2),
            (40, 3, 128, 128),
            (40, 8, 256, 128, 2),
            (40, 32, 128, 256),
            (30, 1, 512, 512),
        )
    ]
]


def example(shape: Shape) -> Example:
    """The model of ``shape``."""
    random = np.random.default_rng(0)
    rows, hidden, directions = GATES[shape.op] * shape.hidden, shape.hidden, shape.directions

    def normal(*dims: int) -> np.ndarray:
        return (random.standard_normal(dims) / np.sqrt(dims[-1])).astype(np.float32)

    weights = {
        "w": normal(directions, rows, shape.inputs),
        "r": normal(directions, rows, hidden),
        "b": normal(directions, 2 * rows),
    }
    x = random.standard_normal((shape.steps, shape.batch, shape.inputs)).astype(np.float32)
    direction = "bidirectional" if directions == 2 else "forward"
    node = helper.make_node(
        shape.op, ["x", "w", "r", "b"], ["y", "y_h"], hidden_size=hidden, direction=direction
    )
    y = (shape.steps, directions, shape.batch, hidden)
    graph = helper.make_graph(
        [node],
        "recurrence",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, y),
            helper.make_tensor_value_info("y_h", TensorProto.FLOAT, y[1:]),
        ],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return Example(str(shape), model, {"x": x})


def table(rows: list[dict[str, Any]]) -> str:
    """The table in the documentation."""
    lines = [
        [
            row["shape"],
            *timing_cells(row),
            *[f"{row['operations'] / row['milliseconds'][name] / 1e6:.0f}" for name in (ORIGINAL, NATIVE)],
            f"{row['error']:.0e}",
        ]
        for row in rows
    ]
    operator = "operator, steps × batch × inputs"
    header = [operator, *TIMING_HEADER, "GFLOP/s, onnxruntime", "GFLOP/s", "error"]
    return markdown_table(header, lines)


def main() -> int:
    """Race all shapes."""
    parser = race_arguments(
        __doc__ or "", "operators whose description matches", processes=5, seconds=0.5, per="process"
    )
    options = parser.parse_args()
    chosen = [shape for shape in SHAPES if re.search(options.only, str(shape))]
    examples = [example(shape) for shape in chosen]
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        made = natives([each.model for each in examples], "fuse-groups{kernels=all}", Path(folder))
        for shape, each, native in zip(chosen, examples, made, strict=True):
            found = measure(each, native, options.threads, options.processes, options.seconds)
            rows.append({"shape": str(shape), "operations": shape.operations} | found)
            print(table(rows[-1:]).splitlines()[2], file=sys.stderr, flush=True)
    text = f"{table(rows)}\n\n{thread_count(options)}, on {machine()}."
    section = f"kernels-recurrences-{options.threads}"
    publish(options, section, text, {"versions": versions(options.peer_python), "shapes": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
