"""Constants that templates pack once per session, in sessions of several threads and libraries."""

from __future__ import annotations

import gc
import resource
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from graphopt import ir
from graphopt.context import context_for
from graphopt.fusion.group_functions import kernels_of
from graphopt.ort import session
from graphopt.ort.session_options import SessionChoice
from graphopt.passes.pipelines import make_pipeline
from tests.fusion.backends.c.runtime.samples import compiled
from tests.fuzz.kernels.batches import cpu_levels, library

pytestmark = compiled

#: Numbers of weights; models with equal numbers have equal constants.
_WEIGHTS = (0, 1, 0, 2)
_FEEDS = {
    "image": np.random.default_rng(1).standard_normal((2, 16, 9, 9)).astype(np.float32),
    "rows": np.random.default_rng(2).standard_normal((5, 32)).astype(np.float32),
    "steps": np.random.default_rng(3).standard_normal((4, 2, 16)).astype(np.float32),
}


def _model(number: int, width: int = 32) -> onnx.ModelProto:
    """Convolutions with strides of 1 and 2, products and a recurrence; two of them share their weights."""
    random = np.random.default_rng(number)

    def constant(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array(random.standard_normal(shape).astype(np.float32), name)

    weights = [
        constant("filters", 16, 16, 3, 3),
        constant("matrix", 32, width),
        constant("w", 1, 36, 16),
        constant("r", 1, 36, 9),
    ]
    packed = random.integers(0, 256, (24, 2, 8)).astype(np.uint8)
    weights += [numpy_helper.from_array(packed, "packed"), constant("scales", 48)]
    attributes: dict[str, Any] = {"K": 32, "N": 24, "bits": 4, "block_size": 16}
    nodes = [
        helper.make_node("Conv", ["image", "filters"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["image", "filters"], ["b"], pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("MatMul", ["rows", "matrix"], ["c"]),
        helper.make_node("Gemm", ["rows", "matrix"], ["d"], alpha=0.5),
        helper.make_node("LSTM", ["steps", "w", "r"], ["e"], hidden_size=9),
        helper.make_node(
            "MatMulNBits", ["rows", "packed", "scales"], ["f"], domain="com.microsoft", **attributes
        ),
    ]
    results = [node.output[0] for node in nodes]
    nodes += [helper.make_node("Tanh", [name], [f"{name}_out"]) for name in results]
    inputs = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, array.shape)
        for name, array in _FEEDS.items()
    ]
    outputs = [helper.make_tensor_value_info(f"{name}_out", onnx.TensorProto.FLOAT, None) for name in results]
    graph = helper.make_graph(nodes, "products", inputs, outputs, weights)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


@dataclass(frozen=True)
class Sample:
    """A model with groups, and its results in onnxruntime without the library."""

    model: bytes
    expected: list[np.ndarray]

    def open(self, path: str, threads: int = 1) -> session.InferenceSession:
        return session.create(self.model, threads=threads, choice=SessionChoice(libraries=(path,)))

    def check(self, opened: session.InferenceSession) -> None:
        for found, expected in zip(session.run(opened, _FEEDS), self.expected, strict=True):
            np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5)


@pytest.fixture(name="samples", scope="module")
def _samples(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Sample], list[str]]:
    """Models by :data:`_WEIGHTS`, and two libraries that both have the kernels of all."""
    found, kernels = [], {}
    for number in _WEIGHTS:
        model = ir.from_proto(_model(number))
        with context_for(model) as cx:
            make_pipeline("fuse-groups{kernels=all}").run(model, cx)
        kernels |= {kernel.name: kernel for kernel in kernels_of(model)}
        assert len(kernels) == 6  # other weights are no other kernels
        data = ir.to_bytes(model)
        expected = session.run(session.create(_model(number).SerializeToString(), threads=1), _FEEDS)
        found.append(Sample(data, [np.asarray(each) for each in expected]))
    folder = tmp_path_factory.mktemp("packed")
    flags = [("-O0",), ("-O0", "-DGO_CHUNK=1024")]
    paths = [
        library(list(kernels.values()), folder / str(number), cpu_levels()[-1:], more=more)
        for number, more in enumerate(flags)
    ]
    return found, [str(path) for path in paths]


def test_sessions_are_closed_in_any_order(samples: tuple[list[Sample], list[str]]) -> None:
    found, (path, _) = samples
    for order in ((0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1), (1, 3, 0, 2)):
        opened = {number: each.open(path) for number, each in enumerate(found)}
        for number in order:
            del opened[number]
            gc.collect()
            for left, running in opened.items():
                found[left].check(running)


def test_two_libraries_in_one_process_pack_separately(samples: tuple[list[Sample], list[str]]) -> None:
    found, paths = samples
    pairs = [(each, path) for each in found for path in paths]
    for first in range(len(pairs)):
        rotated = pairs[first:] + pairs[:first]
        opened = [each.open(path) for each, path in rotated]
        while opened:
            for (each, _), running in zip(rotated, opened, strict=False):
                each.check(running)
            rotated, opened = rotated[1:], opened[1:]


def test_threads_open_run_and_close_sessions(samples: tuple[list[Sample], list[str]]) -> None:
    found, paths = samples
    shared = [each.open(paths[0], threads=2) for each in found]

    def work(seed: int) -> None:
        random = np.random.default_rng(seed)
        for _ in range(12):
            number = int(random.integers(len(found)))
            if random.random() < 0.5:
                found[number].check(shared[number])
            else:
                opened = found[number].open(
                    paths[int(random.integers(2))], threads=int(random.integers(1, 3))
                )
                found[number].check(opened)
                del opened

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))


def _resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system reports no memory of processes")
def test_memory_of_closed_sessions_is_released(tmp_path: Path) -> None:
    """Sessions with 2 MB of other weights each, which are packed once more."""
    model = ir.from_proto(_model(0, 15_000))
    with context_for(model) as cx:
        make_pipeline("fuse-groups{kernels=all}").run(model, cx)
    path = str(library(list(kernels_of(model)), tmp_path, cpu_levels()[-1:], more=("-O0",)))
    data, used = ir.to_bytes(model), []
    for number in range(40):
        proto = onnx.ModelProto.FromString(data)
        (matrix,) = (weight for weight in proto.graph.initializer if weight.dims == [32, 15_000])
        matrix.raw_data = np.full((32, 15_000), number, np.float32).tobytes()
        opened = session.create(proto.SerializeToString(), threads=1, choice=SessionChoice(libraries=(path,)))
        session.run(opened, _FEEDS)
        del opened, proto, matrix
        gc.collect()
        used.append(_resident())
    assert used[-1] - used[9] < 20e6  # 30 packed matrices have 58 MB
