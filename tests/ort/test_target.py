"""The target: capabilities of the installed runtime."""

from __future__ import annotations

import pytest

from graphopt import ir
from graphopt.errors import RuntimeFailure
from graphopt.ort import session, target
from graphopt.ort.devices import Device
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


@pytest.fixture
def unlistable_cuda(monkeypatch):
    """CUDA as a target whose kernels can't be listed."""

    def crash(*arguments, **settings):
        raise RuntimeFailure("onnxruntime crashed (SIGSEGV)")

    monkeypatch.setattr(target, "run_in_child", crash)
    target._kernels.cache_clear()
    yield Target(Device("cuda"))
    target._kernels.cache_clear()


def test_device_with_unlistable_kernels_has_those_of_the_cpu(unlistable_cuda):
    assert unlistable_cuda.has_kernel("Relu", "", 14, "float")
    assert not unlistable_cuda.has_kernel("NoSuchThing", "", 14, "float")


def test_unlistable_kernels_of_onnxruntimes_own_operators_are_those_of_cuda(unlistable_cuda):
    def types(op_type):
        names = ("float", "float16", "bfloat16")
        return [name for name in names if unlistable_cuda.has_kernel(op_type, "com.microsoft", 1, name)]

    assert types("MultiHeadAttention") == ["float", "float16", "bfloat16"]
    assert types("GroupQueryAttention") == ["float16", "bfloat16"]
    assert types("FusedGemm") == []
