"""Let several processes save different models to one path at the same time, and check every result.

    python -m benchmarks.save_race [--rounds 300] [--writers 8] [--readers 2] [--weights copy|keep]

In each round, all writers save at once: half of them one model, half of them another, each with external
data. With `keep`, the models are originals in the same folder, whose data files the results refer to. Readers
load the path all the time. After each round, the model at the path must be whole, and the folder must have no
other files than the originals, the model and its data. Prints the number of results of each model, of loads,
and of faults; the exit status is 1 if there are faults.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from graphopt import ir

#: Elements of a weight; its model's number fills it.
_SIZE = 4096


def original(number: int, folder: Path) -> Path:
    """A model with two weights that contain `number`, in a data file of its own."""
    names = ("first", "second")
    weights = [numpy_helper.from_array(np.full(_SIZE, number, np.float32), name) for name in names]
    nodes = [helper.make_node("Add", ["x", "first"], ["a"]), helper.make_node("Mul", ["a", "second"], ["y"])]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [_SIZE]) for name in "xy")
    graph = helper.make_graph(nodes, f"g{number}", [x], [y], weights)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = folder / f"in{number}.onnx"
    onnx.save(proto, path, save_as_external_data=True, location=f"in{number}.data", size_threshold=0)
    return path


def candidate(path: Path, number: int) -> ir.Model:
    """The model at `path` with one new weight, which also contains `number`."""
    model = ir.load(path)
    model.graph.initializers["second"].const_value = ir.tensor(
        np.full(_SIZE, number, np.float32), name="second"
    )
    return model


def number_of(path: Path) -> int:
    """The number of the model at `path`; raises ValueError if a weight has another one."""
    model = ir.load(path)
    number = int((model.graph.name or "g-1")[1:])
    for name in ("first", "second"):
        tensor = model.graph.initializers[name].const_value
        if tensor is None or not (tensor.numpy() == number).all():
            raise ValueError(f"the model {number} has the weight {name!r} of another one")
    return number


def _write(source: Path, number: int, target: Path, weights: Any, rounds: int, barrier: Any) -> None:
    model = candidate(source, number)
    for _ in range(rounds):
        barrier.wait()
        ir.save(model, target, weights=weights)
        barrier.wait()


def _read(target: Path, stop: Any, results: Any) -> None:
    loads, faults = 0, []
    while not stop.is_set():
        try:
            number_of(target)
        except Exception as error:  # every kind is a fault
            faults.append(f"a reader: {error}")
        loads += 1
    results.put((loads, faults))


def race(folder: Path, weights: str, rounds: int, writers: int, readers: int) -> dict[str, Any]:
    """Run the rounds in `folder`; the counts of results by model, the loads of readers, and the faults."""
    context = multiprocessing.get_context("spawn")
    barrier, stop, results = context.Barrier(writers + 1, timeout=300), context.Event(), context.Queue()
    sources = [original(number, folder) for number in (1, 2)]
    before, target = set(os.listdir(folder)), folder / "out.onnx"
    ir.save(candidate(sources[0], 1), target, weights="keep" if weights == "keep" else "copy")
    processes = [
        context.Process(
            target=_write, args=(sources[item % 2], item % 2 + 1, target, weights, rounds, barrier)
        )
        for item in range(writers)
    ]
    processes += [context.Process(target=_read, args=(target, stop, results)) for _ in range(readers)]
    for process in processes:
        process.start()
    found: dict[str, Any] = {"results": {1: 0, 2: 0}, "loads": 0, "faults": []}
    for number in range(rounds):
        barrier.wait()
        barrier.wait()
        try:
            found["results"][number_of(target)] += 1
        except Exception as error:  # every kind is a fault
            found["faults"].append(f"round {number}: {error}")
        others = [
            name for name in os.listdir(folder) if name not in before and not name.startswith("out.onnx")
        ]
        data = [name for name in os.listdir(folder) if name.startswith("out.onnx.")]
        if others or len(data) != 1:
            found["faults"].append(f"round {number}: the folder has {', '.join([*others, *data])}")
    stop.set()
    for _ in range(readers):
        loads, faults = results.get(timeout=300)
        found["loads"] += loads
        found["faults"] += faults
    for process in processes:
        process.join()
        if process.exitcode:
            found["faults"].append(f"a process ended with status {process.exitcode}")
    return found


def main() -> int:
    """Run the race; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--writers", type=int, default=8)
    parser.add_argument("--readers", type=int, default=2)
    parser.add_argument("--weights", choices=("copy", "keep"), default="copy")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = race(Path(folder), options.weights, options.rounds, options.writers, options.readers)
    print(f"results {found['results']}, {found['loads']} loads by readers, {len(found['faults'])} faults")
    for fault in found["faults"][:20]:
        print(f"  {fault}")
    return 1 if found["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())
