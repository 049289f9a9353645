"""Misaligned inputs, and inputs with repeated elements."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest

import graphopt
from graphopt.diagnostics.record import Record
from graphopt.executor.executor_options import ExecutorOptions
from graphopt.ort.devices import CPU, Device
from graphopt.specialization import input_layout
from graphopt.specialization.input_layout import aligned, distinct_elements, note_repeated
from graphopt.specialization.ort_values import copy_on
from tests.model_testing import parse


class _OnGpu:
    """A value in GPU memory, at a given address."""

    def __init__(self, address: int, device: str = "cuda") -> None:
        self.address, self.device = address, device

    def is_tensor(self) -> bool:
        return True

    def device_name(self) -> str:
        return self.device

    def data_ptr(self) -> int:
        return self.address


def test_misaligned_values_on_the_gpu_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        input_layout, "copy_on", lambda value, device: _OnGpu(value.address + 16 - value.address % 16)
    )
    record = Record(set())
    values: dict[str, Any] = {
        "a": _OnGpu(4096),
        "b": _OnGpu(4100),
        "c": _OnGpu(4104),
        "d": _OnGpu(4100, "cpu"),
    }
    found = aligned(values, Device("cuda"), record)
    assert [value.address for value in found.values()] == [4096, 4112, 4112, 4100]
    assert record.counters == {"copies of misaligned inputs": 2}
    assert [hint.message.split()[1] for hint in record.hints] == ["'b'", "'c'"]
    same = {"a": _OnGpu(4096), "d": _OnGpu(4100, "cpu")}
    assert aligned(same, Device("cuda"), record) is same


def test_copies_have_the_same_contents() -> None:
    buffer = np.arange(8, dtype=np.float32)
    begin = next(i for i in range(4) if buffer[i:].ctypes.data % 16)
    value = onnxruntime.OrtValue.from_dlpack(buffer[begin : begin + 4])
    copy = copy_on(value, CPU)
    np.testing.assert_array_equal(copy.numpy(), buffer[begin : begin + 4])
    assert copy.data_ptr() % 16 == 0


@pytest.mark.parametrize(
    ("array", "shape"),
    [
        (np.broadcast_to(np.ones((1, 4)), (3, 4)), (1, 4)),
        (np.broadcast_to(np.ones((2, 1)), (2, 5)), (2, 1)),
        (np.broadcast_to(np.float32(1), (2, 5)), (1, 1)),
        (np.ones((3, 4)), None),
        (np.broadcast_to(np.ones((1, 4)), (0, 4)), None),
        (np.float32(1), None),
        (np.ones((1, 4)), None),
    ],
)
def test_distinct_elements(array: Any, shape: tuple[int, ...] | None) -> None:
    found = distinct_elements(np.asarray(array))
    assert (None if found is None else found.shape) == shape


def test_repeated_elements_are_noted_at_the_first_run() -> None:
    model = parse("g (float[N,4] x) => (float[N,4] y) { y = Exp(x) }")
    executor = graphopt.compile(model, ExecutorOptions(depth=0), device="cpu")
    for _ in range(3):
        executor({"x": np.broadcast_to(np.ones((1, 4), np.float32), (3, 4))})
    state = executor.debug_state()
    assert state.counters == {"inputs with repeated elements": 1}
    assert [hint.message for hint in state.hints] == [
        "input 'x' of shape [3, 4] repeats [1, 4], and each run expands it in memory"
    ]


def test_dense_arrays_have_no_hint() -> None:
    record = Record(set())
    note_repeated([("x", np.ones((3, 4))), ("s", [np.ones(2)])], record)
    assert record.hints == [] and record.counters == {}
