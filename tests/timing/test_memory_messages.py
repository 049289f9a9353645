"""Messages about a lack of memory while models are timed and profiled."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from google.protobuf.message import DecodeError

from graphopt import ir
from graphopt.errors import SystemExhausted
from graphopt.process.child import Child
from graphopt.timing.alternating_runs import Setup
from graphopt.timing.compare_speed import compare_speed
from graphopt.timing.kernel_profile import KernelProfile, _parsed
from tests.model_testing import parse


def test_messages_name_the_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(child: Child, *arguments: object, doing: str = "", **limits: object) -> None:
        raise SystemExhausted(f"there is not enough memory for onnxruntime {doing}")

    path, setup = tmp_path / "m.onnx", Setup({"x": np.ones(3, np.float32)})
    ir.save(parse("g (float[N] x) => (float[N] y) { y = Neg(x) }"), path)
    monkeypatch.setattr(Child, "call", exhausted)
    with pytest.raises(SystemExhausted, match=r"timing a\.onnx, b\.onnx$"):
        compare_speed({"a.onnx": path, "b.onnx": path}, setup)
    with pytest.raises(SystemExhausted, match=r"profiling b\.onnx$"):
        KernelProfile.of("b.onnx", path, None, setup)


def test_a_lack_of_memory_is_no_other_format(monkeypatch: pytest.MonkeyPatch) -> None:
    class Arena:
        @staticmethod
        def FromString(data: bytes) -> None:
            raise DecodeError("Arena alloc failed" if data else "Error parsing message")

    monkeypatch.setattr(onnx, "ModelProto", Arena)
    assert _parsed(b"", "a.ort") is None
    with pytest.raises(SystemExhausted, match=r"not enough memory to read a\.onnx"):
        _parsed(b"x", "a.onnx")
