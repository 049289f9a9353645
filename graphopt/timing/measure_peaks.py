"""Measure the peaks of this machine, and store them: products of onnxruntime, and copies in memory.

A peak is the highest rate that a kernel can reach, so it is a maximum: of short repetitions, interleaved so
that another process disturbs all peaks alike, and none all the time.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from graphopt.ort import session
from graphopt.ort.devices import CPU
from graphopt.timing.machine_peaks import COPY, Peak, Peaks
from graphopt.util.cpu_features import features, processor, x86_level
from graphopt.util.disk_store import Store, key_of

_KIND = "peaks"
#: Version of the measurement, part of the key.
_FORMAT = 2
#: Rows and columns of the multiplied matrices: they fit into a cache of the second level, and a product takes
#: about 1 ms, so that many run without preemption.
_SIZE = 384
#: Elements of the copied array, larger than the caches.
_COPIED = 1 << 24
#: Number of repetitions of all measurements, and of runs in a repetition; the fastest run counts.
_REPETITIONS = 15
_RUNS = 4


def peaks_of(store: Store, threads: int | None, *, again: bool = False) -> Peaks:
    """The stored peaks of this machine, or new measurements, which are stored.

    Args:
        store: the store.
        threads: threads of a session; ``None`` for onnxruntime's choice.
        again: measure again; each peak is the highest of old and new rates.

    Raises:
        ResourceLimit: the store can't be written.
    """
    import onnxruntime

    key = key_of(
        processor(), features(), _cores(), str(threads), onnxruntime.__version__, str(np.__version__), _FORMAT
    )
    data = store.get(_KIND, key)
    stored = None if data is None else {name: Peak(**peak) for name, peak in json.loads(data).items()}
    if stored is not None and not again:
        return _peaks(stored, threads)
    rates = measure(_probes(threads))
    found = {name: Peak.of(rates[name], (stored or {}).get(name)) for name in rates}
    text = json.dumps({name: asdict(peak) for name, peak in found.items()})
    store.put(_KIND, text.encode(), key)
    return _peaks(found, threads)


def measure(probes: Mapping[str, Sequence[Callable[[], float]]]) -> dict[str, list[float]]:
    """The rates of the repetitions, each the highest of its ``probes``, by name.

    Args:
        probes: functions that run once, and return operations or bytes per second.
    """
    rates: dict[str, list[float]] = {name: [] for name in probes}
    for _ in range(_REPETITIONS):
        for name, ways in probes.items():
            rates[name].append(max(probe() for probe in ways for _ in range(_RUNS)))
    return rates


def _peaks(found: Mapping[str, Peak], threads: int | None) -> Peaks:
    flops = {name: peak for name, peak in found.items() if name != COPY}
    return Peaks(flops, found[COPY], processor(), x86_level(), threads)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _probes(threads: int | None) -> dict[str, list[Callable[[], float]]]:
    """Square products by element type, and copies by onnxruntime and by numpy."""
    work = 2.0 * _SIZE**3
    rng = np.random.default_rng(0)

    def product(op: str, left: Any, right: Any) -> Callable[[], float]:
        shape = (_SIZE, _SIZE)
        feeds = {name: rng.integers(0, 9, shape).astype(kind) for name, kind in (("a", left), ("b", right))}
        return _rate(_node(op, feeds, threads), work)

    copied = np.ones(_COPIED, np.float32)
    negation = _node("Neg", {"a": copied}, threads)
    return {
        "float": [product("MatMul", np.float32, np.float32)],
        "double": [product("MatMul", np.float64, np.float64)],
        # signed weights: faster with VNNI than unsigned ones, which MLAS splits
        "int8": [product("MatMulInteger", np.uint8, kind) for kind in (np.int8, np.uint8)],
        COPY: [_rate(run, 2.0 * copied.nbytes) for run in (negation, _copier(copied, threads or _cores()))],
    }


def _rate(run: Callable[[], object], work: float) -> Callable[[], float]:
    def probe() -> float:
        begin = time.perf_counter()
        run()
        return work / max(time.perf_counter() - begin, 1e-9)

    return probe


def _copier(source: np.ndarray, threads: int) -> Callable[[], object]:
    """A copy by ``threads`` threads, with the memory copy of the C library."""
    target = np.empty_like(source)
    parts = list(zip(np.array_split(target, threads), np.array_split(source, threads), strict=True))
    if threads == 1:
        return lambda: np.copyto(target, source)
    pool = ThreadPoolExecutor(threads)
    return lambda: list(pool.map(lambda part: np.copyto(*part), parts))


def _node(op: str, feeds: dict[str, Any], threads: int | None) -> Callable[[], object]:
    """Runs one node with bound buffers; the last of several inputs is constant, as weights are."""
    (first, *others) = feeds
    weights = [onnx.numpy_helper.from_array(feeds[name], name) for name in others]
    kind = helper.np_dtype_to_tensor_dtype(feeds[first].dtype)
    out = TensorProto.INT32 if op == "MatMulInteger" else kind
    shape = feeds[first].shape
    graph = helper.make_graph(
        [helper.make_node(op, list(feeds), ["y"])],
        "peak",
        [helper.make_tensor_value_info(first, kind, shape)],
        [helper.make_tensor_value_info("y", out, shape)],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    made = session.create(model.SerializeToString(), device=CPU, threads=threads)
    binding = made.io_binding()
    binding.bind_cpu_input(first, feeds[first])
    result = np.empty(math.prod(shape), helper.tensor_dtype_to_np_dtype(out)).reshape(shape)
    binding.bind_output("y", "cpu", 0, result.dtype, shape, result.ctypes.data)
    kept = feeds[first], result  # the binding has their addresses only

    def run() -> object:
        made.run_with_iobinding(binding)
        return kept

    return run
