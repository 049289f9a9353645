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

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C compiler")

F32 = Element.F32
N, M = Size(1, (0,)), Size(1, (1,))
ROWS = Access(0, (M, ONE))


def step(op: str, *args: int, element: Element = F32) -> Instruction:
    return Instruction(op, element, args)


def load(port: int) -> Instruction:
    return Instruction("load", F32, access=Access(port, (M, ONE)))


def kernel(name: str, inputs: int, body: list[Instruction], reduced: bool = False) -> Kernel:
    port = Port(F32, (N, M))
    return Kernel(
        name,
        (port,) * inputs,
        (port,),
        (Symbol(0, 0), Symbol(0, 1)),
        (Axis(N), Axis(M, reduced)),
        (Segment(tuple(body), (Store(ROWS, len(body) - 1),)),),
        in_place=((0, 0),),
    )


SWISH = kernel(
    "swish",
    3,
    [load(0), load(1), load(2), step("sigmoid", 0), step("mul", 0, 3), step("mul", 4, 1), step("add", 5, 2)],
)
SOFTMAX = kernel(
    "softmax", 1,
    [load(0), step("reduce_max", 0), step("sub", 0, 1), step("exp", 2), step("reduce_sum", 3), step("div", 3, 4)],
    reduced=True,
)  # fmt: skip
# A condition with an exponential is spilled for the second stage.
KEPT_BOOL = kernel(
    "kept_bool", 1,
    [load(0), step("exp", 0), Instruction("constant", F32, value=1.0),
     step("lt", 1, 2, element=Element.BOOL), step("reduce_max", 3, element=Element.BOOL),
     step("xor", 3, 4, element=Element.BOOL), step("cast", 5)],
    reduced=True,
)  # fmt: skip
# A reduction before the last axis: the columns of x divided by their norms.
COLUMNS = Kernel(
    "columns", (Port(F32, (N, Size(8), M)),), (Port(F32, (N, Size(8), M)), Port(F32, (N, M))),
    (Symbol(0, 0), Symbol(0, 2)), (Axis(N), Axis(Size(8), True), Axis(M)),
    (Segment(
        (Instruction("load", F32, access=Access(0, (Size(8, (1,)), M, ONE))), step("exp", 0), step("mul", 1, 1),
         step("reduce_sum", 2), step("sqrt", 3), step("div", 1, 4)),
        (Store(Access(0, (Size(8, (1,)), M, ONE)), 5), Store(Access(1, (M, Size(0), ONE)), 4)),
    ),),
)  # fmt: skip
# Pixels of 3 channels: bytes in, scaled by channel, channels last.
PIXELS = Kernel(
    "pixels", (Port(Element.U8, (N, M, Size(3))), Port(F32, (Size(3),))), (Port(F32, (N, M, Size(3))),),
    (Symbol(0, 0), Symbol(0, 1)), (Axis(N), Axis(M), Axis(Size(3))),
    (Segment(
        (Instruction("load", Element.U8, access=Access(0, (Size(3, (1,)), Size(3), ONE))),
         Instruction("load", F32, access=Access(1, (Size(0), Size(0), ONE))),
         step("cast", 0), step("mul", 2, 1)),
        (Store(Access(0, (Size(3, (1,)), Size(3), ONE)), 3),),
    ),),
)  # fmt: skip
KERNELS = [SWISH, SOFTMAX, KEPT_BOOL, COLUMNS, PIXELS]
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
    with pytest.raises(RuntimeError, match="input 2 of swish is 4 long on axis 1, 3 expected"):
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
