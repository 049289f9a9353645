"""Checks of the sizes of tensors against their shapes and types."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from graphopt.ir._onnx_ir_without_sympy import onnx_ir
from graphopt.ir.weights import size_fault


def _tensor(proto: onnx.TensorProto) -> onnx_ir.TensorProtocol:
    return onnx_ir.serde.TensorProtoTensor(proto)


def test_small_raw_tensors_are_checked_without_sizes_of_onnx_ir(monkeypatch: pytest.MonkeyPatch) -> None:
    def size(self: object) -> int:
        raise AssertionError("onnx-ir's size was computed")

    monkeypatch.setattr(onnx_ir.serde.TensorProtoTensor, "size", property(size))
    for array in (np.zeros((2, 3), np.float32), np.array(1, np.int64), np.zeros(4, np.bool_)):
        assert size_fault(_tensor(numpy_helper.from_array(array))) is None


@pytest.mark.parametrize(
    ("dims", "nbytes", "fault"),
    [
        ([2, 3], 20, "has 20 bytes, but its shape [2, 3] and type require 24"),
        ([2], 0, "has 0 bytes, but its shape [2] and type require 8"),
        ([-2, -1], 8, "has a negative dim in its shape [-2, -1]"),
        ([0, 3], 0, None),
    ],
)
def test_faults_of_small_raw_tensors(dims: list[int], nbytes: int, fault: str | None) -> None:
    proto = onnx.TensorProto(data_type=onnx.TensorProto.FLOAT, dims=dims, raw_data=bytes(nbytes))
    assert size_fault(_tensor(proto)) == fault
