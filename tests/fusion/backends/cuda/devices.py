"""Devices that run device code in tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from graphopt.fusion.loops.ir import Kernel
from tests.fusion.backends.cuda.grid_interpreter import GridInterpreter, compiler
from tests.fusion.backends.cuda.launches import Device
from tests.fusion.backends.cuda.opencl import OpenCL, missing

#: OpenCL, the grid interpreter, and the grid interpreter with threads in descending order and unaligned buffers.
DEVICES = ("opencl", "grid", "grid backward")


def build(name: str, kernels: Sequence[Kernel], folder: Path) -> Device:
    """The device ``name`` with ``kernels``; skips the test if the machine lacks it."""
    if name == "opencl":
        reason = missing()
        if reason is not None:
            pytest.skip(reason)
        return OpenCL(kernels)
    if compiler() is None:
        pytest.skip("no C compiler")
    backward = name != "grid"
    return GridInterpreter(kernels, folder, backward=backward, shift=8 if backward else 0)
