"""The target: capabilities of the installed runtime."""

from __future__ import annotations

import dataclasses

import pytest

from graphopt import ir
from graphopt.errors import RuntimeFailure
from graphopt.ort import session, target
from graphopt.ort.devices import Device
from graphopt.ort.recorded_kernels import Kernel, recorded
from graphopt.ort.target import Target
from tests.ort.build import data

CPU = Target()


@pytest.mark.parametrize(
    ("op_type", "domain", "opset", "dtype", "expected"),
    [
        ("Relu", "", 13, "float", True),
        ("Relu", "", 13, "int32", False),
        ("Relu", "", 14, "int32", True),
        ("MatMul", "", 13, "float", True),
        ("MatMul", "", 13, ir.DataType.FLOAT, True),
        ("MatMul", "", 13, ir.DataType.DOUBLE, True),
        ("MatMul", "", 13, ir.DataType.INT8, False),
        ("MatMul", "", 13, None, True),
        ("Gather", "", 13, "string", True),
        ("GlobalLpPool", "", 21, "float", True),
        ("GlobalLpPool", "", 22, "float", False),
        ("Attention", "", 22, "float", False),
        ("HardSwish", "", 22, "float", False),
        ("QuickGelu", "com.microsoft", 1, "float", True),
        ("QuickGelu", "", 17, None, False),
        ("NoSuchThing", "", 17, None, False),
        ("Relu", "com.example", 17, None, False),
    ],
)
def test_kernels(op_type, domain, opset, dtype, expected):
    assert CPU.has_kernel(op_type, domain, opset, dtype) is expected


def test_opset_and_ir_version_limits_are_exact():
    graph = "g (float[1] x) => (float[1] y) { y = Neg(x) }"
    assert session.create(data(graph, opset=CPU.opset_ceiling, ir_version=CPU.ir_ceiling))
    with pytest.raises(RuntimeFailure):
        session.create(data(graph, opset=CPU.opset_ceiling + 1))
    with pytest.raises(RuntimeFailure):
        session.create(data(graph, ir_version=CPU.ir_ceiling + 1))


def test_target_properties():
    import onnxruntime

    assert (CPU.provider, CPU.version) == ("CPUExecutionProvider", onnxruntime.__version__)
    assert Target(Device("cuda", 1)).provider == "CUDAExecutionProvider"


CUDA = Target(Device("cuda"))


@pytest.mark.parametrize(
    ("op_type", "domain", "opset", "types"),
    [
        ("Relu", "", 14, ["float", "float16", "bfloat16"]),
        ("Det", "", 17, []),
        ("ReduceMax", "", 17, ["float", "float16"]),
        ("MultiHeadAttention", "com.microsoft", 1, ["float", "float16", "bfloat16"]),
        ("GroupQueryAttention", "com.microsoft", 1, ["float16", "bfloat16"]),
        ("FusedGemm", "com.microsoft", 1, []),
    ],
)
def test_kernels_of_cuda_are_known_without_a_device(op_type, domain, opset, types):
    names = ("float", "float16", "bfloat16")
    assert [name for name in names if CUDA.has_kernel(op_type, domain, opset, name)] == types


@pytest.fixture
def other_release(monkeypatch):
    """The table of kernels is that of another release."""
    older = dataclasses.replace(recorded(), version="1.0")
    monkeypatch.setattr(target, "recorded", lambda: older)
    target._kernels.cache_clear()
    yield monkeypatch
    target._kernels.cache_clear()


def test_kernels_that_cannot_be_listed_are_the_recorded_ones(other_release):
    def crash(*arguments, **settings):
        raise RuntimeFailure("onnxruntime crashed (SIGSEGV)")

    other_release.setattr(target, "run_in_child", crash)
    assert CUDA.has_kernel("Relu", "", 14, "float")
    assert not CUDA.has_kernel("Det", "", 14, "float")


def test_listed_kernels_of_another_release_precede_the_recorded_ones(other_release):
    listed = {("", "Pad"): [Kernel(13, 13, (("T", frozenset({"tensor(int8)"})),))]}
    other_release.setattr(target, "run_in_child", lambda *arguments, **settings: listed)
    assert CUDA.has_kernel("Pad", "", 13, "int8")
    assert not CUDA.has_kernel("Pad", "", 13, "float")
    assert CUDA.kernels("Pad", "")[0].host_inputs == {1, 2}
