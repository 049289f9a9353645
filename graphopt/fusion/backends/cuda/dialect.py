"""Dialects of device code: CUDA C++ for GPUs, and OpenCL C for tests on CPUs.

The text of a kernel is the same in all dialects: it consists of C and of the types, functions and macros that
the preamble of a dialect defines.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from functools import cache
from importlib import resources


class Dialect(Enum):
    """A dialect; the value is the name of its header."""

    CUDA = "cuda.h"
    OPENCL = "opencl.h"

    @property
    def preamble(self) -> str:
        """The text before the kernels of a module."""
        return header(self.value) + "\n" + header("common.h")


@cache
def header(name: str) -> str:
    """The text of a file in ``include``."""
    return (resources.files(__package__) / "include" / name).read_text(encoding="utf-8")


def module_text(dialect: Dialect, kernels: Iterable[str]) -> str:
    """The source of a module.

    Args:
        kernels: texts of kernels, :attr:`graphopt.fusion.backends.cuda.launch.DeviceKernel.text`.
    """
    return "\n".join([dialect.preamble, *kernels])
