"""Resident memory after an executor released its original, without a run in between.

    python -m benchmarks.release_memory
    python -m benchmarks.release_memory --processes 10 --megabytes 100 --delay 4

Each process compiles a generated model of matrix products whose file contains the weights, creates one
specialization, and then samples its resident memory. The time counts from the end of the delay. The exit
status is 1 if a process has freed less than 90 % of the weights' bytes one second after the delay.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import graphopt
from benchmarks import doc_tables, measured_models, measured_tools
from graphopt.executor.executor_options import ExecutorOptions
from graphopt.process.memory import status_bytes

#: Share of the weights' bytes that a release frees, and the seconds after the delay in which it does.
SHARE, LIMIT = 0.9, 1.0
#: Side of each square weight: 4 MiB of float32.
_SIDE = 1024


def products(path: Path, count: int) -> int:
    """A model of `count` matrix products in `path`; returns the bytes of its weights."""
    random = np.random.default_rng(0)
    names = [f"w{index}" for index in range(count)]
    weights = [
        numpy_helper.from_array(random.random((_SIDE, _SIDE), np.float32) / _SIDE, name) for name in names
    ]
    nodes = [
        helper.make_node("MatMul", [f"h{index}", name], [f"h{index + 1}"]) for index, name in enumerate(names)
    ]
    ends = ("h0", f"h{count}")
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", _SIDE]) for name in ends]
    graph = helper.make_graph(nodes, "products", ports[:1], ports[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return count * 4 * _SIDE**2


def sampled(count: int, delay: float) -> dict[str, float]:
    """The share of the weights that this process frees within `LIMIT`, and the seconds to free `SHARE`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        total = products(path, count)
        options = ExecutorOptions(strategy="static:1", release=True, delay=delay, wait=None)
        executor = graphopt.compile(path, options, verify=False)
        for _ in range(2):
            executor.run({"h0": np.ones((2, _SIDE), np.float32)})
        end, before = time.monotonic() + delay, status_bytes("VmRSS")
        freed, seconds = 0.0, float("inf")
        while time.monotonic() < end + LIMIT or (seconds > LIMIT and time.monotonic() < end + 30):
            share = (before - status_bytes("VmRSS")) / total
            if share >= SHARE and seconds == float("inf"):
                seconds = max(0.0, time.monotonic() - end)
            if time.monotonic() < end + LIMIT:
                freed = share
            time.sleep(0.005)
        return {"freed": freed, "seconds": seconds}


def table(found: list[dict[str, float]], megabytes: float, delay: float) -> str:
    """The figures of all processes, and the machine."""
    rows = [
        [index, f"{100 * one['freed']:.0f} %", f"{one['seconds']:.2f}"] for index, one in enumerate(found, 1)
    ]
    load = os.getloadavg()[0]
    return (
        f"{doc_tables.markdown_table(['process', 'freed', 'seconds'], rows)}\n\n"
        f"{megabytes:.0f} MB of weights, a delay of {delay:g} s, on {doc_tables.machine()}, load {load:.1f}."
    )


def main() -> int:
    """Measure, print the table, and insert it into documents."""
    parser = measured_models.arguments(__doc__ or "", models=False)
    parser.add_argument("--processes", type=int, default=10, help="fresh processes (default: 10)")
    parser.add_argument("--megabytes", type=int, default=100, help="bytes of the weights (default: 100)")
    parser.add_argument("--delay", type=float, default=4.0, help="seconds before the release (default: 4)")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    count = max(1, round(options.megabytes * 1e6 / (4 * _SIDE**2)))
    if options.worker:
        print(json.dumps(sampled(count, options.delay)))
        return 0
    command = [sys.executable, "-m", "benchmarks.release_memory", "--worker"]
    command += [f"--megabytes={options.megabytes}", f"--delay={options.delay}"]
    found: list[dict[str, Any]] = []
    for _ in range(options.processes):
        done = subprocess.run(command, cwd=measured_tools.ROOT, capture_output=True, text=True, check=True)
        found.append(json.loads(done.stdout.splitlines()[-1]))
    text = table(found, count * 4 * _SIDE**2 / 1e6, options.delay)
    doc_tables.publish(options, "release-memory", text, {"machine": doc_tables.machine(), "processes": found})
    return int(any(one["freed"] < SHARE for one in found))


if __name__ == "__main__":
    sys.exit(main())
