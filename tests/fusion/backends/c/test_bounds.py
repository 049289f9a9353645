"""Kernels with out-of-bounds indices, as in models with wrong shapes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from graphopt.fusion.backends.c.kernel_printer import kernel_text
from graphopt.fusion.backends.c.source_file import source
from graphopt.fusion.loops.ir import (
    ONE,
    ZERO,
    Access,
    Axis,
    Instruction,
    Kernel,
    Port,
    Segment,
    Size,
    Store,
    Symbol,
)
from tests.fusion.backends.c.harness import Unit, compiler
from tests.fusion.backends.pattern_kernels import F32, KERNELS, SWISH, N


def copy(
    name: str,
    strides: tuple[Size, ...],
    offset: Size = ZERO,
    sizes: tuple[Size, ...] = (Size(4),),
    dims: tuple[Size, ...] = (N,),
    cut: Size | None = None,
) -> Kernel:
    """A kernel that loads elements of ``x[dims]`` and stores them contiguously in an array of ``sizes``."""
    body = (Instruction("load", F32, access=Access(0, strides, offset)),)
    dense: list[Size] = []
    stride = ONE
    for size in reversed(sizes):
        dense.insert(0, stride)
        stride = Size(stride.factor * size.factor, (*stride.symbols, *size.symbols))
    stores = (Store(Access(0, tuple(dense)), 0),)
    segments: tuple[Segment, ...] = (Segment(body, stores),)
    if cut is not None:
        segments = (Segment(body, stores, ZERO, cut), Segment(body, stores, cut))
    symbols = tuple(Symbol(0, axis) for axis, dim in enumerate(dims) if dim.symbols)
    axes = tuple(Axis(size) for size in sizes)
    at = None if cut is None else 0
    return Kernel(name, (Port(F32, dims),), (Port(F32, sizes),), symbols, axes, segments, at)


SLICED = copy("sliced", (ONE,), Size(6))
REVERSED = copy("reversed", (Size(-1),), Size(3))
BEFORE = copy("before", (ONE,), Size(-1))
STEPS = copy("steps", (Size(2),))
HUGE = copy("huge", (Size(2**62),), sizes=(Size(5),))
LOWER = replace(copy("lower", (ONE,), sizes=(N,)), outputs=(Port(F32, (Size(4),)),))
CUT = copy("cut", (ONE,), sizes=(N,), cut=Size(4))
# The sum over no elements reads y[0] nevertheless.
EMPTY = Kernel(
    "empty", (Port(F32, (Size(3), N)), Port(F32, (N,))), (Port(F32, (Size(3),)),), (Symbol(0, 1),),
    (Axis(Size(3)), Axis(N, True)),
    (Segment(
        (Instruction("load", F32, access=Access(0, (N, ONE))), Instruction("load", F32, access=Access(1, (ZERO, ZERO))),
         Instruction("reduce_sum", F32, (0,)), Instruction("add", F32, (1, 2))),
        (Store(Access(0, (ONE, ZERO)), 3),),
    ),),
)  # fmt: skip
WRONG = [SLICED, REVERSED, BEFORE, STEPS, HUGE, LOWER, CUT, EMPTY]


@pytest.fixture(scope="module")
def unit(tmp_path_factory: pytest.TempPathFactory) -> Unit:
    if compiler() is None:
        pytest.skip("no C compiler")
    return Unit(WRONG, tmp_path_factory.mktemp("unit"))


@pytest.mark.parametrize(
    ("kernel", "short", "enough"),
    [(SLICED, 9, 10), (REVERSED, 3, 4), (STEPS, 6, 7), (CUT, 3, 4), (LOWER, 5, 3), (EMPTY, 0, 1)],
    ids=lambda value: value.name if isinstance(value, Kernel) else str(value),
)
def test_out_of_bounds_accesses_fail(unit: Unit, kernel: Kernel, short: int, enough: int) -> None:
    for length, fits in ((enough, True), (short, False)):
        feeds = [
            np.ones([length if dim.symbols else dim.factor for dim in port.dims], np.float32)
            for port in kernel.inputs
        ]
        if fits:
            unit.run(WRONG.index(kernel), feeds)
        else:
            with pytest.raises(RuntimeError, match=r"it would (read|write) outside|leave its loops"):
                unit.run(WRONG.index(kernel), feeds)


@pytest.mark.parametrize("kernel", [BEFORE, HUGE], ids=lambda kernel: kernel.name)
def test_statically_out_of_bounds_kernels_fail(unit: Unit, kernel: Kernel) -> None:
    for length in (0, 1, 5, 1000):
        with pytest.raises(RuntimeError, match=r"^it would read outside of input 0"):
            unit.run(WRONG.index(kernel), [np.ones(length, np.float32)])


@pytest.mark.parametrize(
    "kernel",
    [
        *KERNELS,
        copy("rows", (Size(100), ONE), Size(10), (N, Size(50)), (N, Size(100))),
        copy("turned", (ONE, Size(1, (1,))), ZERO, (Size(1, (1,)), N), (N, Size(1, (1,)))),
        copy("back", (Size(-1),), Size(3), (Size(4),), (Size(4),)),
    ],
    ids=lambda kernel: kernel.name,
)
def test_provable_bounds_are_not_checked(kernel: Kernel) -> None:
    assert "go_inside" not in kernel_text(kernel)


def test_kernel_names_are_validated() -> None:
    for name in ('x"); system("true', "a-b", "", "1a", "a" * 300, "a\n", "é"):
        with pytest.raises(ValueError, match="identifier"):
            source([replace(SWISH, name=name)])


def test_overflowing_buffer_sizes_fail(tmp_path: Path) -> None:
    if compiler() is None:
        pytest.skip("no C compiler")
    # 2^61 rows, each the same 8 numbers, whose exponentials are buffered: 2^64 of them
    body = (
        Instruction("load", F32, access=Access(0, (ZERO, ONE))),
        Instruction("exp", F32, (0,)),
        Instruction("reduce_sum", F32, (1,)),
        Instruction("div", F32, (1, 2)),
        Instruction("reduce_max", F32, (3,)),
    )
    kernel = Kernel(
        "wide", (Port(F32, (Size(8),)),), (Port(F32, ()),), (), (Axis(Size(2**61), True), Axis(Size(8), True)),
        (Segment(body, (Store(Access(0, (ZERO, ZERO)), 4),)),),
    )  # fmt: skip
    with pytest.raises(RuntimeError, match="out of memory"):
        Unit([kernel], tmp_path, flags=("-Wno-overflow",)).run(0, [np.ones(8, np.float32)])
