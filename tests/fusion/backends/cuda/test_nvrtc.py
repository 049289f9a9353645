"""Kernels compile as CUDA C++, without spilled registers, and with wide accesses."""

from __future__ import annotations

import re

import pytest

from graphopt.fusion.backends.cuda.nvrtc import Target
from graphopt.fusion.loops.ir import Element, Kernel, Size
from tests.fusion.backends.cuda.compiled import images, needs_nvrtc
from tests.fusion.backends.cuda.device_kernels import (
    column_sums,
    concatenation,
    layer_norm,
    powers,
    row_sum,
    shifted,
    softmax,
    sum_of_transposed,
    transposed,
)
from tests.fusion.backends.pattern_kernels import KERNELS, SWISH, M, N
from tests.fuzz.kernels.random_kernels import Generator

pytestmark = needs_nvrtc

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
ENDS = [Target(75), Target(90)]


@pytest.mark.parametrize("target", ENDS, ids=str)
def test_typical_kernels_compile_without_spills(target: Target) -> None:
    resources = images(TYPICAL, target).resources
    assert len(resources) > len(TYPICAL)
    assert all(each.spill_stores == each.spill_loads == 0 for each in resources.values())
    assert max(each.registers for each in resources.values()) <= 64


@pytest.mark.parametrize("target", ENDS, ids=str)
def test_random_kernels_compile(target: Target) -> None:
    kernels = [Generator(seed).kernel() for seed in range(8)]
    assert len(images(kernels, target).resources) >= len(kernels)


@pytest.mark.parametrize("kernel", [sum_of_transposed("nine", 9), powers("fifty", 50)])
def test_large_kernels_fit_into_shared_memory(kernel: Kernel) -> None:
    resources = images([kernel], Target(75)).resources
    assert 0 < max(each.shared for each in resources.values()) <= 48 * 1024


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
    code = images([kernel], Target(90, ptx=True)).code.decode()
    assert set(re.findall(r"(?:ld|st)\.global(?:\.nc)?\.v\d\.\w+", code)) == wide


def test_halves_are_converted_by_instructions() -> None:
    code = images([transposed("halves", Element.F16)], Target(90, ptx=True)).code
    assert b"cvt.f32.f16" in code and b"cvt.rn.f16.f32" in code
