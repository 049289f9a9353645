"""Measure the peaks of this machine by products and copies of onnxruntime, and store them."""

from __future__ import annotations

import json
import math
import time
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from graphopt.ort import session
from graphopt.ort.devices import CPU
from graphopt.timing.roofline import Peaks
from graphopt.util.cpu_features import features, processor
from graphopt.util.disk_store import Store, key_of

_KIND = "peaks"
#: Version of the measurement, part of the key.
_FORMAT = 1
#: Rows and columns of the multiplied matrices: a product takes a few ms, so that some run without preemption.
_SIZE = 512
#: Elements of the copied array, larger than the caches.
_COPIED = 1 << 24
#: Number of runs; the fastest counts.
_RUNS = 60


def peaks_of(store: Store, threads: int | None) -> Peaks:
    """The stored peaks of this machine, or new measurements, which are stored.

    Args:
        store: the store.
        threads: threads of a session; ``None`` for onnxruntime's choice.

    Raises:
        ResourceLimit: the store can't be written.
    """
    import onnxruntime

    key = key_of(processor(), features(), str(threads), onnxruntime.__version__, _FORMAT)
    data = store.get(_KIND, key)
    if data is not None:
        found = json.loads(data)
        return Peaks(found["flops"], found["bandwidth"])
    peaks = measure(threads)
    text = json.dumps({"flops": dict(peaks.flops), "bandwidth": peaks.bandwidth}, sort_keys=True)
    store.put(_KIND, text.encode(), key)
    return peaks


def measure(threads: int | None) -> Peaks:
    """Measure square products by element type, and a copy by a negation."""
    work = 2 * _SIZE**3
    rng = np.random.default_rng(0)
    flops = {}
    for name, op, kind in (
        ("float", "MatMul", np.float32),
        ("double", "MatMul", np.float64),
        ("int8", "MatMulInteger", np.uint8),
    ):
        feeds = {key: rng.integers(0, 9, (_SIZE, _SIZE)).astype(kind) for key in "ab"}
        flops[name] = work / _fastest(op, feeds, threads)
    copied = {"a": np.ones(_COPIED, np.float32)}
    return Peaks(flops, 2 * copied["a"].nbytes / _fastest("Neg", copied, threads))


def _fastest(op: str, feeds: dict[str, Any], threads: int | None) -> float:
    """Seconds of the fastest run of one node; the last of several inputs is constant, as weights are."""
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
    result = np.empty(shape, helper.tensor_dtype_to_np_dtype(out))
    binding.bind_output("y", "cpu", 0, result.dtype, shape, result.ctypes.data)
    best = math.inf
    for _ in range(_RUNS):
        begin = time.perf_counter()
        made.run_with_iobinding(binding)
        best = min(best, time.perf_counter() - begin)
    return best
