"""Captured runs: buffers, copies, warm-up and bounds, on a session of the CPU that records run options.

The CPU provider ignores the number of the graph, so that each run computes; the addresses that a GPU would
replay are those of the bindings.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import onnxruntime
import pytest

from graphopt import ir
from graphopt.diagnostics.record import Record
from graphopt.ort import session
from graphopt.ort.devices import CPU
from graphopt.specialization.cuda_graphs.captured_graphs import CapturedGraphs, GraphOptions
from tests.model_testing import parse

_MODEL = "g (float[N,4] x, float[4] w) => (float[N,4] y, float[N,4] z) { y = Mul(x, w)\n z = Relu(y) }"


class _Session:
    """A session that records the graph number and the input addresses of each run."""

    def __init__(self, text: str) -> None:
        self.real = session.create(ir.to_bytes(parse(text)), threads=1)
        self.runs: list[int] = []
        self.fails_to_capture = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def run_with_iobinding(self, binding: Any, options: Any) -> None:
        self.runs.append(int(options.get_run_config_entry("gpu_graph_id")))
        if self.fails_to_capture and self.runs[-1] > 0:
            raise RuntimeError("[ONNXRuntimeError] : 1 : FAIL : Graph capture did not complete")
        self.real.run_with_iobinding(binding, options)


def _graphs(skipped: int = 0, **options: Any) -> tuple[CapturedGraphs, _Session, Record]:
    made, record = _Session(_MODEL), Record(set())
    wanted = GraphOptions(skipped=skipped, **options)
    return CapturedGraphs(made, CPU, wanted, record), made, record  # type: ignore[arg-type]


def _feeds(rows: int, factor: float = 1.0) -> dict[str, np.ndarray[Any, Any]]:
    x = np.arange(rows * 4, dtype=np.float32).reshape(rows, 4) - 3
    return {"x": x * np.float32(factor), "w": np.array([1, -2, 3, 0.5], np.float32)}


def _expected(feeds: dict[str, np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    y = feeds["x"] * feeds["w"]
    return [y, np.maximum(y, 0)]


def _check(found: list[Any], feeds: dict[str, Any]) -> None:
    for value, expected in zip(found, _expected(feeds), strict=True):
        np.testing.assert_array_equal(value if isinstance(value, np.ndarray) else value.numpy(), expected)


def test_shapes_that_occur_once_use_up_no_graph() -> None:
    graphs, made, record = _graphs(skipped=GraphOptions().skipped, most=1)
    for rows in (1, 2, 3, 2, 2, 1):
        _check(graphs.arrays(_feeds(rows)), _feeds(rows))
    assert made.runs == [-1, -1, -1, -1, 1, 1, -1]  # the second run of two rows is captured
    assert record.counters == {
        "cuda-graph captures": 1,
        "cuda-graph replays": 1,
        "cuda-graph runs without a graph": 1,
    }


def test_the_first_run_warms_up_and_captures_and_later_runs_replay() -> None:
    graphs, made, record = _graphs()
    for factor in (1.0, 2.0, -3.0):
        _check(graphs.arrays(_feeds(3, factor)), _feeds(3, factor))
    assert made.runs == [-1, 1, 1, 1]
    assert record.counters == {"cuda-graph captures": 1, "cuda-graph replays": 2}


def test_a_failed_capture_ends_all_captures() -> None:
    graphs, made, record = _graphs()
    made.fails_to_capture = True
    for rows in (3, 3, 2):
        _check(graphs.arrays(_feeds(rows)), _feeds(rows))
    assert made.runs == [-1, 1, -1, -1, -1]  # the run after the capture computes the outputs again
    assert record.counters == {"cuda-graph runs without a graph": 3}
    (hint,) = record.hints
    assert hint.message == (
        "CUDA graphs are off: onnxruntime can't capture a run: Graph capture did not complete"
    )


def test_arrays_and_values_share_a_graph() -> None:
    graphs, made, _ = _graphs()
    feeds = _feeds(3)
    values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in _feeds(3, 2.0).items()}
    for given, expected in ((feeds, feeds), (values, _feeds(3, 2.0)), (feeds, feeds)):
        _check(graphs.arrays(given), expected)
    assert made.runs == [-1, 1, 1, 1]


def test_each_set_of_shapes_has_a_graph_up_to_a_bound() -> None:
    graphs, made, record = _graphs(most=2)
    for rows in (1, 2, 3, 1, 2, 3):
        _check(graphs.arrays(_feeds(rows)), _feeds(rows))
    assert made.runs == [-1, 1, -1, 2, -1, 1, 2, -1]
    assert record.counters == {
        "cuda-graph captures": 2,
        "cuda-graph replays": 2,
        "cuda-graph runs without a graph": 2,
    }
    (hint,) = record.hints
    assert hint.code == "cuda-graph-off" and "2 sets of input shapes are captured" in hint.message


def test_empty_tensors_are_not_captured() -> None:
    graphs, made, record = _graphs()
    _check(graphs.arrays(_feeds(0)), _feeds(0))
    assert made.runs == [-1] and record.hints == []


def test_outputs_are_copies() -> None:
    graphs, _, _ = _graphs()
    first = graphs.values(_feeds(3))
    second = graphs.values(_feeds(3, 2.0))
    _check(first, _feeds(3))
    _check(second, _feeds(3, 2.0))
    addresses = {value.data_ptr() for value in (*first, *second)}
    assert len(addresses) == 4


def test_outputs_are_buffers_on_request() -> None:
    graphs, _, _ = _graphs(reuse_outputs=True)
    first = graphs.values(_feeds(3))
    second = graphs.values(_feeds(3, 2.0))
    assert [value.data_ptr() for value in first] == [value.data_ptr() for value in second]
    _check(first, _feeds(3, 2.0))


def test_inputs_of_the_caller_are_not_read_after_the_run() -> None:
    graphs, _, _ = _graphs()
    feeds = _feeds(3)
    graphs.arrays(feeds)
    feeds["x"] *= 0
    _check(graphs.arrays(_feeds(3)), _feeds(3))


def test_static_inputs_are_read_in_place() -> None:
    graphs, made, _ = _graphs(static=("w",))
    weights = onnxruntime.OrtValue.ortvalue_from_numpy(_feeds(3)["w"])
    feeds: dict[str, Any] = {"x": _feeds(3)["x"], "w": weights}
    _check(graphs.arrays(feeds), _feeds(3))
    weights.update_inplace(np.array([5, 5, 5, 5], np.float32))  # a replay reads the same address
    expected = {"x": _feeds(3)["x"], "w": np.full(4, 5, np.float32)}
    _check(graphs.arrays(feeds), expected)
    assert made.runs == [-1, 1, 1]
    other = onnxruntime.OrtValue.ortvalue_from_numpy(np.full(4, 2, np.float32))
    _check(graphs.arrays({**feeds, "w": other}), {"x": _feeds(3)["x"], "w": np.full(4, 2, np.float32)})
    assert made.runs == [-1, 1, 1, -1, 2]  # another address needs another graph


def test_static_arrays_and_misaligned_values_are_copied() -> None:
    graphs, _, _ = _graphs(static=("w",))
    buffer = np.zeros(8, np.float32)
    begin = next(i for i in range(4) if buffer[i:].ctypes.data % 16)
    part = buffer[begin : begin + 4]
    part[:] = _feeds(3)["w"]
    value = onnxruntime.OrtValue.from_dlpack(part)
    assert value.data_ptr() % 16
    for given in (value, part):
        _check(graphs.arrays({"x": _feeds(3)["x"], "w": given}), _feeds(3))
    part *= 2
    _check(graphs.arrays({"x": _feeds(3)["x"], "w": value}), {"x": _feeds(3)["x"], "w": part})


def test_repeated_elements_are_copied_if_they_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs, _, _ = _graphs()
    rows = np.array([[1, 2, 3, 4]], np.float32)
    uploads: list[tuple[int, ...]] = []
    update = onnxruntime.OrtValue.update_inplace

    def counted(self: Any, data: Any) -> None:
        uploads.append(tuple(data.shape) if isinstance(data, np.ndarray) else ())
        update(self, data)

    monkeypatch.setattr(onnxruntime.OrtValue, "update_inplace", counted)
    w = _feeds(1)["w"]
    for factor in (1, 1, 2):
        x = np.broadcast_to(rows * np.float32(factor), (1000, 4))
        _check(graphs.arrays({"x": x, "w": w}), {"x": x, "w": w})
    assert [shape for shape in uploads if shape == (1000, 4)] == [(1000, 4)]  # the second run uploads nothing
    dense = np.ascontiguousarray(np.broadcast_to(rows, (1000, 4)))
    for x in (dense, np.broadcast_to(rows * 2, (1000, 4))):
        _check(graphs.arrays({"x": x, "w": w}), {"x": x, "w": w})


def test_threads_do_not_mix_their_buffers() -> None:
    graphs, _, _ = _graphs()
    failures: list[BaseException] = []

    def work(factor: float) -> None:
        try:
            for _ in range(50):
                _check(graphs.arrays(_feeds(5, factor)), _feeds(5, factor))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(float(number),)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
