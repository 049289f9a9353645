"""Typical kernels of models, compiled and compared with the interpreter."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from graphopt.fusion.backends.c.source_file import source
from graphopt.fusion.loops.interpreter import TYPES, number, run
from graphopt.fusion.loops.ir import (
    ONE,
    Access,
    Axis,
    Element,
    Instruction,
    Kernel,
    Port,
    Segment,
    Size,
    Store,
    Symbol,
)
from tests.fusion.backends.c.harness import Unit, compiler, levels
from tests.fusion.backends.pattern_kernels import F32, KERNELS, SOFTMAX, SWISH, kernel, load, step

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C compiler")

SHAPES = [(3, 5), (0, 4), (4, 0), (1, 1), (7, 64), (33, 1009), (2, 16), (500, 301)]


@pytest.fixture(scope="module", params=levels())
def unit(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Unit:
    return Unit(KERNELS, tmp_path_factory.mktemp("unit"), request.param)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("index", range(len(KERNELS)))
def test_generated_code_agrees_with_the_interpreter(unit: Unit, index: int, shape: tuple[int, int]) -> None:
    random = np.random.default_rng(1)
    inputs = []
    for port in KERNELS[index].inputs:
        values = random.standard_normal([number(dim, shape) for dim in port.dims])
        inputs.append(
            (np.abs(values) * 50 if port.element is Element.U8 else values).astype(TYPES[port.element])
        )
    expected = run(KERNELS[index], inputs)
    for in_place in (False, True):
        for got, want in zip(unit.run(index, inputs, in_place), expected, strict=True):
            np.testing.assert_allclose(got, want, rtol=3e-6, atol=1e-6)


def test_mismatched_inputs_are_refused(unit: Unit) -> None:
    a, b = np.zeros((2, 3), np.float32), np.zeros((2, 4), np.float32)
    with pytest.raises(RuntimeError, match=r"^input 2 is 4 long on axis 1, 3 expected"):
        unit.run(0, [a, a, b])


def test_source_is_deterministic() -> None:
    assert source([SWISH, SOFTMAX]) == source([SWISH, SOFTMAX])


def test_a_zero_keeps_its_sign(tmp_path: Path) -> None:
    body = [load(0), Instruction("constant", F32, value=-0.0), step("mul", 0, 1)]
    x = np.array([[1, -1, 0.0, -0.0]], np.float32)
    (found,) = Unit([kernel("negative_zero", 1, body)], tmp_path).run(0, [x])
    np.testing.assert_array_equal(np.signbit(found), np.signbit(x * np.float32(-0.0)))


CHANNELS = [(count, channel) for count in (2, 3, 4, 5) for channel in (0, count - 1)]


def channel_of_pixels(count: int, channel: int) -> Kernel:
    """One channel of a row of pixels, as floats."""
    long = Size(1, (0,))
    body = (
        Instruction("load", Element.U8, access=Access(0, (Size(count),), Size(channel))),
        Instruction("cast", F32, (0,)),
    )
    return Kernel(
        f"channel_{channel}_of_{count}",
        (Port(Element.U8, (long, Size(count))),),
        (Port(F32, (long,)),),
        (Symbol(0, 0),),
        (Axis(long),),
        (Segment(body, (Store(Access(0, (ONE,)), 1),)),),
    )


@pytest.mark.parametrize("level", levels())
def test_interleaved_channels_are_shuffled(level: int, tmp_path: Path) -> None:
    kernels = [channel_of_pixels(*which) for which in CHANNELS]
    unit = Unit(kernels, tmp_path, level)
    for index, (count, channel) in enumerate(CHANNELS):
        for length in (0, 1, 15, 16, 17, 64, 101):
            pixels = np.random.default_rng(length).integers(0, 256, (length, count)).astype(np.uint8)
            (found,) = unit.run(index, [pixels])
            np.testing.assert_array_equal(found, pixels[:, channel].astype(np.float32))
