"""The time of a decoding step: a loop whose cache stays in onnxruntime's values, and plain runs on arrays.

    python -m benchmarks.decode_loop                         generated decoders with a cache of fixed size
    python -m benchmarks.decode_loop gpt2_small_past.onnx    a decoder with a growing cache

Inputs and outputs of the cache are `past*` and `present*`. Both ways use the same plan of one executor, and
run the same steps alternately: a round has one sequence of each, and its ratio is that of the median steps,
loop to plain. Outputs and caches must be equal. `buffers` is the number of addresses of a cache: with one,
each step is written over the step before. `copied` are the bytes of caches in other buffers than before the
step, which the model has copied there, per step after the first.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import graphopt
from graphopt import ir
from graphopt.executor.executor import Executor
from graphopt.executor.executor_options import ExecutorOptions
from graphopt.timing import ratios

STATE = [("past*", "present*")]
#: Tokens in the vocabulary of a generated decoder.
WORDS = 64


def fixed_decoder(layers: int, width: int, capacity: int) -> ir.Model:
    """A decoder whose caches have `capacity` rows: a step writes row `at`, and reads the rows up to it."""
    random = np.random.default_rng(0)
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []

    def weight(name: str, array: np.ndarray) -> str:
        weights.append(numpy_helper.from_array(array, name))
        return name

    def add(op: str, inputs: list[str], output: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(op, inputs, [output], **attributes))
        return output

    def matrix(name: str, rows: int, columns: int) -> str:
        return weight(name, (random.standard_normal((rows, columns)) / rows**0.5).astype(np.float32))

    table = matrix("table", WORDS, width)
    h = add("Gather", [table, "ids"], "h")
    late = add("Greater", [weight("rows", np.arange(capacity)), "at"], "late")
    last = weight("axis", np.array([1]))
    row = add("Unsqueeze", ["at", last], "row")
    least, scale = (
        weight("least", np.array(-1e9, np.float32)),
        weight("scale", np.array(width**-0.5, np.float32)),
    )
    ports = []
    for i in range(layers):
        caches = {}
        for kind in ("key", "value"):
            new = add("MatMul", [h, matrix(f"w{kind}{i}", width, width)], f"{kind}{i}")
            caches[kind] = add("ScatterND", [f"past.{i}.{kind}", row, new], f"present.{i}.{kind}")
            ports.append(f"{i}.{kind}")
        q = add("MatMul", [h, matrix(f"wq{i}", width, width)], f"q{i}")
        turned = add("Transpose", [caches["key"]], f"turned{i}", perm=[1, 0])
        scores = add("Mul", [add("MatMul", [q, turned], f"products{i}"), scale], f"scores{i}")
        masked = add("Where", [late, least, scores], f"masked{i}")
        rows = add("MatMul", [add("Softmax", [masked], f"p{i}", axis=-1), caches["value"]], f"rows{i}")
        h = add("Add", [h, add("MatMul", [rows, matrix(f"wo{i}", width, width)], f"out{i}")], f"h{i}")
    add("MatMul", [h, add("Transpose", [table], "columns", perm=[1, 0])], "logits")
    shape = [capacity, width]
    tensor = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "decoder",
        [
            tensor("ids", TensorProto.INT64, [1]),
            tensor("at", TensorProto.INT64, [1]),
            *(tensor(f"past.{name}", TensorProto.FLOAT, shape) for name in ports),
        ],
        [
            tensor("logits", TensorProto.FLOAT, [1, WORDS]),
            *(tensor(f"present.{name}", TensorProto.FLOAT, shape) for name in ports),
        ],
        weights,
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return ir.from_proto(made)


def cache_of(executor: Executor) -> dict[str, np.ndarray]:
    """A cache before the first step: zeros of a fixed size, or empty where the size is not fixed."""
    found = {}
    for port in executor.signature.inputs:
        if port.name.startswith("past"):
            sizes = [
                dim if isinstance(dim, int) else int(axis == 0) for axis, dim in enumerate(port.dims or ())
            ]
            found[port.name] = np.zeros(sizes, np.float32)
    return found


def inputs_of(executor: Executor, step: int) -> dict[str, np.ndarray]:
    """The other inputs of a step, which depend on its number only."""
    found: dict[str, np.ndarray] = {}
    for port in executor.signature.inputs:
        if port.name == "at":
            found[port.name] = np.array([step])
        elif "mask" in port.name:
            found[port.name] = np.ones((1, step + 1), np.int64)
        elif not port.name.startswith("past"):
            found[port.name] = np.full([1] * len(port.dims or ()), 7 * step % 50, np.int64)
    return found


class Plain:
    """Runs on arrays, which are outputs of the run before."""

    def __init__(self, executor: Executor) -> None:
        self._executor, self.state = executor, cache_of(executor)

    def __call__(self, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        found = self._executor.run({**inputs, **self.state})
        self.state = {name: found.pop(name.replace("past", "present", 1)) for name in self.state}
        return found

    def addresses(self) -> dict[str, int]:
        """The address of each cache."""
        return {name: array.__array_interface__["data"][0] for name, array in self.state.items()}


class Bound:
    """A loop of the executor."""

    def __init__(self, executor: Executor) -> None:
        self._loop, self._first = executor.loop(STATE), cache_of(executor)

    def __call__(self, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        found, self._first = self._loop({**inputs, **self._first}), {}
        return found

    @property
    def state(self) -> dict[str, np.ndarray]:
        return {name: value.numpy() for name, value in self._loop.state.items()}

    def addresses(self) -> dict[str, int]:
        """The address of each cache."""
        return {name: value.data_ptr() for name, value in self._loop.state.items()}


WAYS: dict[str, Callable[[Executor], Plain | Bound]] = {"plain": Plain, "loop": Bound}


def sequence(way: Plain | Bound, feeds: list[dict[str, np.ndarray]]) -> Iterator[tuple[float, Any]]:
    """The seconds and the outputs of each step."""
    for inputs in feeds:
        begin = time.perf_counter()
        found = way(inputs)
        yield time.perf_counter() - begin, found


@dataclass(frozen=True)
class Caches:
    """The caches of a sequence.

    Attributes:
        nbytes: their bytes after the last step.
        buffers: the largest number of buffers of one cache in the loop.
        copied: by way, the bytes per step that are not in the buffers of the previous step.
    """

    nbytes: int
    buffers: int
    copied: Mapping[str, float]


def check_equal(executor: Executor, feeds: list[dict[str, np.ndarray]]) -> Caches:
    """Compare both ways, and find the buffers of the caches after each step."""
    plain, bound = Plain(executor), Bound(executor)
    ways: dict[str, Plain | Bound] = {"plain": plain, "loop": bound}
    buffers: dict[str, set[int]] = {}
    before: dict[str, dict[str, int]] = {}
    copied = dict.fromkeys(ways, 0)
    for inputs in feeds:
        one, other = plain(inputs), bound(inputs)
        for name, array in (one | plain.state).items():
            if not np.array_equal(array, (other | bound.state)[name], equal_nan=True):
                raise SystemExit(f"{name} differs")
        for way, running in ways.items():
            after = running.addresses()
            for name, array in plain.state.items():
                is_copied = way in before and before[way][name] != after[name]
                copied[way] += array.nbytes if is_copied else 0
            before[way] = after
        for name, address in before["loop"].items():
            buffers.setdefault(name, set()).add(address)
    size = sum(array.nbytes for array in plain.state.values())
    per_step = {way: total / max(len(feeds) - 1, 1) for way, total in copied.items()}
    return Caches(size, max(map(len, buffers.values())), per_step)


def measure(executor: Executor, steps: int, rounds: int) -> tuple[dict[str, float], list[float]]:
    """The median seconds of a step of each way, and the ratio loop to plain of each round."""
    feeds = [inputs_of(executor, step) for step in range(steps)]
    medians: dict[str, list[float]] = {name: [] for name in WAYS}
    for number in range(rounds):
        for name in ratios.turn_order(list(WAYS), number):
            way = WAYS[name](executor)
            medians[name].append(statistics.median(seconds for seconds, _ in sequence(way, feeds)))
    paired = [loop / plain for loop, plain in zip(medians["loop"], medians["plain"], strict=True)]
    return {name: statistics.median(times) for name, times in medians.items()}, paired


def compiled(model: ir.Model | Path) -> Executor:
    """An executor with one plan, on one thread."""
    return graphopt.compile(model, ExecutorOptions(depth=0), threads=1, verify=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", type=Path, nargs="*")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=11)
    arguments = parser.parse_args()
    models: dict[str, ir.Model | Path] = {path.stem: path for path in arguments.models} or {
        f"{layers} layers, {capacity} × {width}": fixed_decoder(layers, width, capacity)
        for layers, width, capacity in ((2, 64, 256), (4, 256, 1024), (4, 256, 4096))
    }
    print(
        f"{'model':28} {'cache':>9} {'buffers':>8} {'copied: plain':>13} {'loop':>9} "
        f"{'plain':>9} {'loop':>9} {'ratio':>6} {'rounds':>11}"
    )
    for name, model in models.items():
        executor = compiled(model)
        feeds = [inputs_of(executor, step) for step in range(arguments.steps)]
        caches = check_equal(executor, feeds)
        seconds, paired = measure(executor, arguments.steps, arguments.rounds)
        times = " ".join(f"{seconds[way] * 1e3:6.3f} ms" for way in WAYS)
        ratio = f"{statistics.median(paired):6.2f} {f'{min(paired):.2f}–{max(paired):.2f}':>11}"
        plain, loop = (caches.copied[way] / 1e6 for way in WAYS)
        copied = f"{plain:10.2f} MB {loop:6.2f} MB"
        print(
            f"{name:28} {caches.nbytes / 1e6:6.2f} MB {caches.buffers:8} {copied} {times} {ratio}", flush=True
        )


if __name__ == "__main__":
    main()
