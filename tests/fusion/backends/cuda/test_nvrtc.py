"""Kernels compile as CUDA C++, without spilled registers, and with wide accesses."""

from __future__ import annotations

import re

import pytest

from graphopt.fusion.backends.cuda.device_printer import device_kernel
from graphopt.fusion.backends.cuda.dialect import Dialect, module_text
from graphopt.fusion.loops.ir import Element, Kernel, Size
from tests.fusion.backends.cuda.device_kernels import (
    column_sums,
    concatenation,
    layer_norm,
    row_sum,
    shifted,
    softmax,
    transposed,
)
from tests.fusion.backends.cuda.nvrtc import compile_cuda, missing
from tests.fusion.backends.pattern_kernels import KERNELS, PIXELS, SWISH, M, N
from tests.fuzz.kernels.random_kernels import Generator

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

TYPICAL = [
    *KERNELS,
    row_sum("sum", M),
    softmax("softmax_50000", Size(50000)),
    softmax("softmax_197", Size(197)),
    layer_norm("norm", Size(768)),
    column_sums("column_sums", N, M),
    concatenation("halves", 16, 16),
    transposed("transposed_f32", Element.F32),
    *(shifted(f"shifted_{element.name.lower()}", element) for element in Element),
]


def source(*kernels: Kernel) -> str:
    return module_text(Dialect.CUDA, [device_kernel(kernel).text for kernel in kernels])


@pytest.mark.parametrize("architecture", ["sm_75", "sm_90"])
def test_typical_kernels_compile_without_spills(architecture: str) -> None:
    code, log = compile_cuda(source(*TYPICAL), architecture)
    assert code
    assert "warning" not in log
    spills = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", log)
    assert set(spills) == {("0", "0")}
    assert max(int(count) for count in re.findall(r"Used (\d+) registers", log)) <= 64


@pytest.mark.parametrize("architecture", ["sm_75", "sm_90"])
def test_random_kernels_compile(architecture: str) -> None:
    kernels = [Generator(seed).kernel() for seed in range(8)]
    code, log = compile_cuda(source(*kernels), architecture)
    assert code
    assert "warning" not in log


@pytest.mark.parametrize(
    ("kernel", "wide"),
    [
        (SWISH, {"ld.global.v4.f32", "ld.global.nc.v4.f32", "st.global.v4.f32"}),
        (transposed("tiles", Element.F32), set()),
        (softmax("softmax_197", Size(197)), set()),
        (softmax("softmax_200", Size(200)), {"ld.global.nc.v4.f32", "st.global.v4.f32"}),
    ],
)
def test_aligned_accesses_have_128_bits(kernel: Kernel, wide: set[str]) -> None:
    code, _ = compile_cuda(source(kernel), "compute_90")
    assert set(re.findall(r"(?:ld|st)\.global(?:\.nc)?\.v\d\.\w+", code.decode())) == wide


def test_halves_of_pixels_are_converted_by_instructions() -> None:
    code, _ = compile_cuda(source(PIXELS, transposed("halves", Element.F16)), "compute_90")
    assert b"cvt.f32.f16" in code and b"cvt.rn.f16.f32" in code
