"""Devices that run device code in tests."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from graphopt.fusion.loops.ir import Kernel
from tests.fusion.backends.cuda.grid_interpreter import GridInterpreter, compiler
from tests.fusion.backends.cuda.launches import Device
from tests.fusion.backends.cuda.opencl import OpenCL, missing

#: OpenCL; the grid interpreter; the same with threads in descending order and unaligned buffers; and the same with
#: the header of CUDA C++.
DEVICES = ("opencl", "grid", "grid backward", "cuda on cpu")


def build(name: str, kernels: Sequence[Kernel], folder: Path) -> Device:
    """The device ``name`` with ``kernels``; skips the test if the machine lacks it."""
    if name == "opencl":
        reason = missing()
        if reason is not None:
            pytest.skip(reason)
        return OpenCL(kernels)
    if compiler() is None:
        pytest.skip("no C compiler")
    if name == "cuda on cpu":
        if not any(map(shutil.which, ("g++", "clang++", "c++"))):
            pytest.skip("no C++ compiler")
        return GridInterpreter(kernels, folder, cuda=True)
    backward = name == "grid backward"
    return GridInterpreter(kernels, folder, backward=backward, shift=8 if backward else 0)
