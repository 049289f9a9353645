"""Kernels with hand-written launches, and the launches in numpy."""

from __future__ import annotations

import ctypes

import numpy as np

from graphopt.fusion.backends.cuda.host_printer import HostedKernel
from graphopt.fusion.backends.cuda.launch import (
    Bound,
    Buffer,
    Condition,
    DeviceKernel,
    Extent,
    GridDim,
    Input,
    Launch,
    Output,
    Scratch,
    SizeValue,
)
from tests.fusion.backends.cuda.device_kernels import reduction
from tests.fusion.backends.pattern_kernels import M, N, kernel, load, step

WHOLE = N * M

#: y = x + x, in place; one launch with both widths of indices.
TWICE = kernel("twice", 1, [load(0), step("add", 0, 0)])
#: The sums of rows: at once for short rows, in parts of 4 elements for long ones.
SUMS = reduction("sums", [load(0), step("reduce_sum", 0)], M, False)
_ELEMENTS = (Extent(N), Extent(M))
_LONG = Condition((Bound((Extent(M),), least=9),))
_PARTS = (Extent(N), Extent(M, step=4))
HOSTED = [
    HostedKernel(
        TWICE,
        DeviceKernel(
            "",
            (
                Launch(
                    "twice_0", GridDim(_ELEMENTS, 256), 256, (Input(0), Output(0), SizeValue(WHOLE)),
                    counts=(_ELEMENTS,),
                ),
            ),
        ),
        "",
    ),
    HostedKernel(
        SUMS,
        DeviceKernel(
            "",
            (
                Launch(
                    "sums_short", GridDim((Extent(N),)), 32, (Input(0), Output(0), SizeValue(N), SizeValue(M)),
                    condition=Condition(_LONG.bounds, negated=True),
                ),
                Launch("sums_parts", GridDim(_PARTS), 64, (SizeValue(M), Input(0), Scratch(0)), condition=_LONG),
                Launch("sums_long", GridDim((Extent(N),), 8), 128, (Scratch(0), Output(0), SizeValue(N), SizeValue(M)),
                       condition=_LONG),
            ),
            (Buffer(_PARTS, 4),),
        ),
        "",
    ),
]  # fmt: skip


class Device:
    """Runs the launches of these kernels, and records them."""

    def __init__(self) -> None:
        self.launches: list[tuple[str, int, int, list[int]]] = []

    def __call__(
        self, name: str, blocks: int, threads: int, arguments: ctypes.Array[ctypes.c_void_p]
    ) -> None:
        count = {"twice_0": 3, "sums_short": 4, "sums_parts": 3, "sums_long": 4}[name.removesuffix("_32")]
        values = [ctypes.c_int64.from_address(arguments[at] or 0).value for at in range(count)]
        self.launches.append((name, blocks, threads, values))
        if name == "twice_0_32":
            source, target, size = values
            floats(target, size)[:] = 2 * floats(source, size)
        elif name == "sums_short":
            source, target, rows, length = values
            floats(target, rows)[:] = floats(source, rows * length).reshape(rows, length).sum(1)
        elif name == "sums_parts":
            length, source, target = values
            parts = -(-length // 4)
            rows = blocks // parts
            padded = np.zeros((rows, parts * 4), np.float32)
            padded[:, :length] = floats(source, rows * length).reshape(rows, length)
            floats(target, rows * parts)[:] = padded.reshape(-1, 4).sum(1)
        else:
            source, target, rows, length = values
            parts = -(-length // 4)
            floats(target, rows)[:] = floats(source, rows * parts).reshape(rows, parts).sum(1)


def floats(address: int, count: int) -> np.ndarray:
    """``count`` floats at ``address``."""
    return np.ctypeslib.as_array((ctypes.c_float * count).from_address(address))
