"""Hints about TF32, for GPUs described by objects."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from graphopt.device_hints.model_hints import model_hints, timing_hints
from graphopt.device_hints.tf32 import float32_products, tf32_timed
from graphopt.diagnostics.hint import HINTS, Hint
from graphopt.diagnostics.record import Record, recorded
from graphopt.ort.devices import CPU, Device
from graphopt.ort.gpu_properties import GpuProperties, gpu_properties, properties_from
from tests.model_testing import parse

_CUDA = Device("cuda")
_AMPERE, _TURING = GpuProperties("A100", (8, 0)), GpuProperties("T4", (7, 5))
_PRODUCTS = "g (float[N,4] x) => (float[N,4] y) <float[4,4] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7}> { a = MatMul(x, w)\n b = Relu(a)\n y = MatMul(b, w) }"
_DOUBLE = "g (double[N,4] x) => (double[N,N] y) { t = Transpose(x)\n y = MatMul(x, t) }"
_BODY = """g (bool c, float[2,2] x) => (float[2,2] y) {
  y = If (c) <then_branch = a () => (float[2,2] p) { p = MatMul(x, x) }, else_branch = b () => (float[2,2] q) { q = Relu(x) }>
}"""
_CAST = "g (double[2,2] x) => (float[2,2] y) { f = Cast <to = 1> (x)\n y = MatMul(f, f) }"


@pytest.mark.parametrize(("text", "count"), [(_PRODUCTS, 2), (_DOUBLE, 0), (_BODY, 1), (_CAST, 1)])
def test_products(text: str, count: int) -> None:
    assert float32_products(parse(text)) == count


def _codes(device: Device, gpu: GpuProperties | None, text: str = _PRODUCTS, **options: Any) -> list[str]:
    return [hint.code for hint in model_hints(parse(text), device, gpu, **options)]


def test_the_hint_applies_to_sessions_without_tf32_on_gpus_with_it() -> None:
    assert _codes(_CUDA, _AMPERE, tf32=False) == ["tf32-off"]
    assert _codes(_CUDA, _AMPERE, tf32=True) == _codes(_CUDA, _AMPERE) == []
    assert _codes(_CUDA, _TURING, tf32=False) == _codes(_CUDA, None, tf32=False) == []
    assert _codes(CPU, None, tf32=False) == []
    assert _codes(_CUDA, _AMPERE, _DOUBLE, tf32=False) == []


def test_verification_has_its_own_hint() -> None:
    assert _codes(_CUDA, _AMPERE, is_verified=True) == ["tf32-verification"]
    assert _codes(_CUDA, _TURING, is_verified=True) == []
    (hint,) = model_hints(parse(_PRODUCTS), _CUDA, _AMPERE, is_verified=True)
    assert "2 float32 products" in hint.message and "use_tf32=0" in hint.remedy
    assert _CUDA.providers()[0][1]["use_tf32"] == "0"  # the fact that the hint states


def test_timings_have_their_own_hint() -> None:
    timed = _CUDA.timed
    hint = tf32_timed({"original": 12, "optimized": 12}, timed, _AMPERE)
    assert hint is not None and hint.code == "tf32-timed"
    assert hint.message == "TF32, which rounds factors to 10 bits, is on for 12 float32 products"
    hint = tf32_timed({"original": 12, "half.onnx": 0}, timed, _AMPERE)
    assert hint is not None and hint.message == (
        "TF32 is on, and the models have different numbers of float32 products: 12 of original, 0 of half.onnx"
    )
    for products, device, gpu in (
        ({"original": 0}, timed, _AMPERE),
        ({"original": 2}, timed, _TURING),
        ({"original": 2}, timed, None),
        ({"original": 2}, _CUDA.having({"use_tf32": 0}).timed, _AMPERE),
        ({"original": 2}, CPU, None),
    ):
        assert tf32_timed(products, device, gpu) is None


def test_timed_sessions_have_tf32_unless_an_option_switches_it_off() -> None:
    models = {"original": parse(_PRODUCTS), "double.onnx": parse(_DOUBLE)}
    (hint,) = timing_hints(models, _CUDA, _AMPERE)
    assert hint.message.endswith("float32 products: 2 of original, 0 of double.onnx")
    assert list(timing_hints(models, _CUDA.having({"use_tf32": 0}), _AMPERE)) == []
    assert list(timing_hints(models, CPU, None)) == []


def test_once_per_process() -> None:
    given: set[str] = set()
    (hint,) = model_hints(parse(_PRODUCTS), _CUDA, _AMPERE, tf32=False)
    first, second = Record(given), Record(given)
    for record in (first, second):
        record.hint(hint)
        record.hint(Hint("bf16-unsupported", "a", "b"))
    assert [one.code for one in first.hints] == ["tf32-off", "bf16-unsupported"]
    assert [one.code for one in second.hints] == ["bf16-unsupported"]


def test_records_are_nested() -> None:
    with recorded() as outer:
        with recorded() as inner:
            inner.hint(Hint("bf16-unsupported", "a", "b"))
            inner.count("sessions", 2)
        outer.count("sessions")
    assert inner.counters == {"sessions": 2}
    assert outer.counters == {"sessions": 3} and outer.hints == inner.hints


def test_every_code_has_a_condition() -> None:
    hints = model_hints(parse(_PRODUCTS), _CUDA, _AMPERE, tf32=False, is_verified=True)
    assert {hint.code for hint in hints} <= set(HINTS) and all(text.endswith(".") for text in HINTS.values())


class _Driver(SimpleNamespace):
    """The functions of libcuda for one GPU of capability 9.0."""

    def cuInit(self, flags: int) -> int:
        return 0

    def cuDeviceGet(self, handle: Any, index: int) -> int:
        handle._obj.value = 7
        return 0 if index == 0 else 101

    def cuDeviceGetName(self, name: Any, size: int, handle: ctypes.c_int) -> int:
        name.value = b"NVIDIA H200"
        return 0 if handle.value == 7 else 1

    def cuDeviceGetAttribute(self, value: Any, attribute: int, handle: ctypes.c_int) -> int:
        value._obj.value = {75: 9, 76: 0}[attribute]
        return 0


def test_the_driver_describes_gpus() -> None:
    found = properties_from(_Driver(), 0)
    assert found == GpuProperties("NVIDIA H200", (9, 0)) and found.has_tf32 and found.has_bf16
    assert str(found) == "NVIDIA H200 (compute capability 9.0)"
    assert properties_from(_Driver(), 1) is None and gpu_properties(CPU) is None
