"""The decision whether convolutions run with the channels last, without a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from graphopt import ir
from graphopt.ort.devices import CPU, Device
from graphopt.ort.gpu_properties import GpuProperties, matrix_units
from graphopt.transforms.layout._decide_layout import ConvolutionFacts, decide_layout

GPU = Device("cuda").capabilities
#: 3 × 3, from 128 channels to 128.
ORDINARY = ConvolutionFacts(ir.DataType.FLOAT16, (128, 128, 3, 3), 1, 10**9, is_static=True, has_kernel=True)
SMALL = replace(ORDINARY, weights=(32, 3, 3, 3))
NARROWING = replace(ORDINARY, weights=(64, 256, 3, 3))
GROUPED = replace(ORDINARY, weights=(128, 32, 3, 3), group=4)
DEPTHWISE = replace(ORDINARY, weights=(128, 1, 3, 3), group=128)


@pytest.mark.parametrize(
    ("convolutions", "reason"),
    [
        ([ORDINARY], "1 convolution: channels last, predicted 0.82 of the time"),
        ([SMALL, SMALL], "2 convolutions: channels last, predicted 0.78 of the time"),
        ([NARROWING], "1 convolution: channels last, predicted 0.72 of the time"),
        ([DEPTHWISE], "1 convolution: channels last, predicted 0.82 of the time"),
        (
            [replace(ORDINARY, dtype=ir.DataType.FLOAT)],
            "1 convolution: channels last, predicted 0.82 of the time",
        ),
        ([GROUPED, *[ORDINARY] * 3], "4 convolutions: channels last, predicted 0.96 of the time"),
    ],
)
def test_channels_last_on_a_gpu(convolutions: list[ConvolutionFacts], reason: str) -> None:
    decision = decide_layout(convolutions, 20, GPU)
    assert (decision.is_channels_last, decision.reason) == (True, reason)


@pytest.mark.parametrize(
    ("convolutions", "nodes", "reason"),
    [
        ([], 20, "no convolutions"),
        ([GROUPED], 20, "1 convolution: predicted 1.36 of the time with the channels last"),
        ([ORDINARY], 300, "1 convolution among 300 nodes: too few to matter"),
        (
            [ORDINARY, replace(ORDINARY, is_static=False)],
            20,
            "2 convolutions: the sizes of images or weights are not known",
        ),
        (
            [replace(ORDINARY, weights=None)],
            20,
            "1 convolution: the sizes of images or weights are not known",
        ),
        (
            [replace(ORDINARY, has_kernel=False)],
            20,
            "1 convolution: no channels-last kernel for this device and type",
        ),
        (
            [replace(ORDINARY, flops=0)],
            20,
            "1 convolution: predicted 1.00 of the time with the channels last",
        ),
    ],
)
def test_channels_first_on_a_gpu(convolutions: list[ConvolutionFacts], nodes: int, reason: str) -> None:
    decision = decide_layout(convolutions, nodes, GPU)
    assert (decision.is_channels_last, decision.reason) == (False, reason)


def test_float32_needs_tensor_cores() -> None:
    single = replace(ORDINARY, dtype=ir.DataType.FLOAT)
    decision = decide_layout([single], 20, replace(GPU, tf32=False))
    assert decision.reason == "1 convolution: no tensor cores for this type"
    assert decide_layout([ORDINARY], 20, replace(GPU, tf32=False)).is_channels_last


@pytest.mark.parametrize(
    ("capability", "channels_last"),
    [((6, 1), False), ((7, 5), True), ((8, 0), True)],
    ids=["6.1", "7.5", "8.0"],
)
def test_float16_needs_a_gpu_with_tensor_cores(capability: tuple[int, int], channels_last: bool) -> None:
    units = matrix_units(Device("cuda"), GpuProperties("a GPU", capability))
    assert decide_layout([ORDINARY], 20, replace(GPU, matrix_units=units)).is_channels_last is channels_last


def test_cpus_keep_the_layout_unless_forced() -> None:
    decision = decide_layout([ORDINARY], 20, CPU.capabilities)
    assert decision.reason == "1 convolution: on CPUs, onnxruntime's own layouts are as fast or faster"
    assert not decision.is_channels_last
    assert decide_layout([ORDINARY], 20, CPU.capabilities, force=True).is_channels_last


def test_force_needs_a_kernel() -> None:
    without = replace(ORDINARY, has_kernel=False)
    assert not decide_layout([without], 20, CPU.capabilities, force=True).is_channels_last
    assert (
        decide_layout([without, GROUPED], 20, GPU, force=True).reason
        == "2 convolutions: channels last, as requested"
    )
